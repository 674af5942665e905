"""Every question that a page may ask a server, by name: about a run, one event or kernel of it, or two runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tessera.profiling.export.formats import chrome
from tessera.viewer.failures import NotFoundError
from tessera.viewer.pages import answers, budget, code, scope
from tessera.viewer.pages.event import event
from tessera.viewer.pages.kernel import kernel
from tessera.viewer.runs import Run

_OF_ONE: Final = {"event": event, "kernel": kernel, "programs": code.programs, "code": code.code}
"""Questions about one event or kernel, of which there are too many for a report in one file to hold all answers."""


def answer(name: str, asked: Mapping[str, str], run_of: Callable[[str], Run], max_bytes: float) -> object:
    """The answer to a question: packed slices, or what becomes JSON. `run_of` gives the run that a parameter names.

    Raises NotFoundError for a question that there is not, ProfileError where it would take more than `max_bytes`.
    """
    if name == "compare":
        a, b = run_of("a"), run_of("b")
        for each in (a, b):
            budget.require(each, name, max_bytes)
        return answers.compared(a, b)
    run = run_of("run")
    if name in ("columns", "kernel") or name in answers.ANSWERS:
        budget.require(run, name, max_bytes, scope.window(asked))
    if name == "columns":
        return answers.slices(run, asked)[0]
    if name in _OF_ONE:
        return _OF_ONE[name](run, asked)
    if name not in answers.ANSWERS:
        raise NotFoundError(f"there is no {name!r}")
    return answers.ANSWERS[name](run, asked)


def table(question: str, asked: Mapping[str, str], run: Run, max_bytes: float) -> str:
    """The table of an answer as CSV. Raises as `answer` does, and NotFoundError for an answer that is no table."""
    budget.require(run, question or "csv", max_bytes, scope.window(asked))
    if question not in answers.ANSWERS:
        raise NotFoundError(f"there is no table {question!r}")
    found = answers.ANSWERS[question](run, asked)
    found = found.get("table", found)
    if "rows" not in found:
        raise NotFoundError(f"{question!r} is no table")
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(column["heading"] for column in found["columns"])
    writer.writerows(found["rows"])
    return text.getvalue()


def timeline(run: Run) -> Iterable[bytes]:
    """The run as a Chrome trace, piece by piece."""
    return chrome.pieces(run.trace())
