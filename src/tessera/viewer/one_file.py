"""A report in one file: the viewer with all that it asks for, which opens without a server and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import polars

from tessera.errors import TesseraError
from tessera.profiling.export.output import exported
from tessera.profiling.trace.table import Trace
from tessera.viewer import assets
from tessera.viewer.failures import error_json
from tessera.viewer.pages import answers, code, columns, kernel
from tessera.viewer.runs import Run

MOST_SLICES: Final = 5_000_000
_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ABOUT_PEOPLE: Final = ("thread_names", "command")


def write(
    runs: Sequence[Run], path: Path, *, most_slices: int = MOST_SLICES, redact: bool = False, with_code: bool = False
) -> Path:
    """Writes a report of one run, or of two that are compared, and gives its path. Of more than `most_slices` the
    longest are in the timeline; tables are of all. `redact` leaves out host names, process numbers, the command line
    and Python stacks; `with_code` has the compiler make the kernels' code again, which takes seconds.

    Raises ProfileError where the first run cannot be read, or the file not be written.
    """
    runs[0].trace()
    shown = [_redacted(run) for run in runs] if redact else runs
    page = text(shown, most_slices, with_code)
    with exported(path, "report") as file:
        file.write(page.encode())
    return path


def text(runs: Sequence[Run], most_slices: int = MOST_SLICES, with_code: bool = False) -> str:
    """The report as HTML."""
    coded = _codes(runs) if with_code else {}
    held: dict[str, Any] = {"answers": {**_answers(runs), **coded}, "columns": _columns(runs, most_slices)}
    held["worker"] = assets.files()["worker.js"].decode()
    data = json.dumps(held, allow_nan=False, default=str)
    for character, escape in _ESCAPED.items():
        data = data.replace(character, escape)
    script, style = assets.bundle(), assets.files()["app.css"].decode()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; worker-src blob:"
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(runs[0].name)}</title>",
            f'<link rel="icon" href="data:,">\n<style>\n{style}</style>\n</head>\n<body>\n<div id="app"></div>',
            f'<script type="application/json" id="tessera-data">{data}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def key(question: str, **asked: object) -> str:
    """What the page calls a question (`keyOf` in api.js)."""
    return f"{question}?{urlencode(sorted(asked.items()))}"


def _answers(runs: Sequence[Run]) -> dict[str, Any]:
    found: dict[str, Any] = {
        key("runs"): [{"run": number, "name": run.name, **run.summary()} for number, run in enumerate(runs)]
    }
    for number, run in enumerate(runs):
        for question, answer in {**answers.ANSWERS, "programs": code.programs}.items():
            try:
                found[key(question, run=number)] = answer(run, {})
            except TesseraError as error:
                found[key(question, run=number)] = error_json(error)
        if "rows" in found[key("kernels", run=number)]:
            for row, told in enumerate(kernel.first_kernels(run)):
                found[key("kernel", run=number, row=row)] = told
    for a, first in enumerate(runs):
        for b, second in enumerate(runs):
            if a != b:
                found[key("compare", a=a, b=b)] = answers.compared(first, second)
    return found


def _codes(runs: Sequence[Run]) -> dict[str, Any]:
    found = {}
    for number, run in enumerate(runs):
        count = len(code.programs(run, {})["programs"])
        for program, told in enumerate(code.codes(run, list(range(count)))):
            found[key("code", run=number, program=program)] = told
    return found


def _columns(runs: Sequence[Run], most_slices: int) -> dict[str, str]:
    packed = (run.answer(("columns", most_slices), lambda trace: columns.packed(trace, most_slices)) for run in runs)
    return {str(number): base64.b64encode(body).decode() for number, (body, _) in enumerate(packed)}


def _redacted(run: Run) -> Run:
    def read() -> Trace:
        found = run.trace()
        ranks = {
            number: {name: value for name, value in told.items() if name not in ("host", "pid")}
            for number, told in found.metadata.get("ranks", {}).items()
        }
        kept = {name: value for name, value in found.metadata.items() if name not in _ABOUT_PEOPLE}
        hidden = [polars.lit(None, found.events.collect_schema()[name]).alias(name) for name in ("stack", "pid")]
        return Trace(found.events.with_columns(hidden), {**kept, "ranks": ranks}, found.capability)

    hosts = [str(told["host"]) for told in run.trace().metadata.get("ranks", {}).values() if told.get("host")]
    name = run.name
    for host in sorted(hosts, key=len, reverse=True):  # the files of tensorboard_dir are called after theirs
        name = name.replace(host, "host")
    return Run(name, read)
