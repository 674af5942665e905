"""``python -m bench SUITE [--threads N] [--untuned] [--json FILE] [--save] [--quick]``, or for SUITE ``numerics``, or
``record`` (`bench.tuning.record`)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import machine, table
from bench.pool import Pool
from bench.results import CaseResult, SuiteResult
from bench.suites import SUITES

RESULTS = Path(__file__).resolve().parent / "results"
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Tessera against the libraries of today.")
    parser.add_argument("suite", choices=[*SUITES, "all"])
    parser.add_argument("--threads", type=int, action="append", help="thread count; repeatable (default: 1 and 2)")
    parser.add_argument("--untuned", action="store_true", help="Tessera with the schedules of its cost model")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--save", action="store_true", help="also write bench/results/<cpu>-<date>.json and .md")
    parser.add_argument("--quick", action="store_true", help="one small case each: does everything run?")
    return parser.parse_args(arguments)


def document(results: Sequence[SuiteResult], quick: bool, tuned: bool = True) -> dict[str, Any]:
    """Results with the machine, the versions and the date, ready for JSON; verdicts are spelled out."""

    def case(result: CaseResult) -> dict[str, Any]:
        verdicts = [asdict(verdict) | {"met": verdict.met} for verdict in result.verdicts()]
        return asdict(result) | {"verdicts": verdicts}

    suites = [
        {
            "suite": result.suite,
            "threads": result.threads,
            "interrupted": result.interrupted,
            "cases": [case(one) for one in result.cases],
            "figures": [asdict(figure) | {"met": figure.met} for figure in result.figures],
        }
        for result in results
    ]
    return {
        "cpu": machine.cpu_name(),
        "cores": machine.cores(),
        "versions": machine.versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "tuned": tuned,
        "suites": suites,
    }


def save(found: dict[str, Any], sheets: Sequence[table.Sheet], suite: str, folder: Path = RESULTS) -> list[Path]:
    """Writes ``<cpu>-<date>.json`` and ``.md`` into `folder`, with the suite's name if it was not all of them. Returns
    their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{machine.cpu_slug()}-{found['date'][:10]}" + ("" if suite == "all" else f"-{suite}")
    data, text = folder / f"{stem}.json", folder / f"{stem}.md"
    data.write_text(json.dumps(found, indent=1) + "\n")
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    schedules = "schedules tuned" if found["tuned"] else "schedules of the cost model, nothing tuned"
    title = f"{found['cpu']}, {found['cores']} cores, {found['date']} ({versions}); {schedules}"
    text.write_text(table.markdown(sheets, title))
    return [data, text]


@contextmanager
def reporting(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows what is being measured: one line that changes on a terminal, else lines on standard error with the minutes
    since the start, so that a log tells how far a run has come."""
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
        return
    start = time.monotonic()

    def line(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", file=sys.stderr, flush=True)

    yield line


def main(arguments: Sequence[str]) -> int:
    """Runs the suites asked for. Returns the exit code: 0, also when a goal was missed; `INTERRUPTED` after Ctrl-C,
    which keeps the jobs that were measured."""
    if arguments[:1] == ["numerics"]:
        from bench.numerics import command

        return command.main(arguments[1:])
    if arguments[:1] == ["record"]:
        from bench.tuning import record

        return record.main(arguments[1:])
    options = parse(arguments)
    threads = options.threads or [count for count in (1, 2) if count <= machine.cores()]
    names = list(SUITES) if options.suite == "all" else [options.suite]
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"{machine.cpu_name()}, {machine.cores()} cores; {machine.versions()}", highlight=False)
    results: list[SuiteResult] = []
    written: list[Path] = []
    with reporting(console) as progress:
        for count in threads:
            with Pool(count, not options.untuned) as pool:
                for name in names:
                    results.append(SUITES[name](pool, progress, options.quick))
                    table.print_sheets(table.sheets(results[-1:]), console)
                    # After every suite, so that a run that is cut short keeps what it measured.
                    written = write(results, options)
                    if results[-1].interrupted:
                        return _ended(written, console, INTERRUPTED)
    return _ended(written, console, 0)


def _ended(written: Sequence[Path], console: Console, code: int) -> int:
    for path in written:
        console.print(f"written: {path}")
    return code


def write(results: Sequence[SuiteResult], options: argparse.Namespace) -> list[Path]:
    """Writes the results so far to the files that were asked for, and returns their paths."""
    found = document(results, options.quick, not options.untuned)
    paths = []
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        paths.append(options.json)
    return paths + (save(found, table.sheets(results), options.suite) if options.save else [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
