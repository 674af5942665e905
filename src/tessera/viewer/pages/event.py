"""One event in full, beside the others of its name."""

from __future__ import annotations

from typing import Any

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses.kernels import NAME
from tessera.profiling.trace.table import Trace
from tessera.viewer.pages import columns
from tessera.viewer.pages.answers import slices
from tessera.viewer.pages.scope import Parameters
from tessera.viewer.pages.tables import plain
from tessera.viewer.runs import Run


def event(run: Run, asked: Parameters) -> dict[str, Any]:
    """The event behind a slice of `columns.packed`, of the window from `t0` to `t1` where these are given: all columns
    that have a value, and among the `calls` events of its kind and name which one it is (`nth`, from 1 on), their
    median, and the share of them that took no longer.

    Raises ArgumentError for a slice that there is not.
    """
    _, events = slices(run, asked)
    text = asked.get("slice", "")
    if not text.isdecimal() or int(text) >= len(events):
        raise ArgumentError(f"slice={text!r}", hints=[f"a whole number below {len(events)}"])
    row = int(events[int(text)])
    if row < 0:
        raise ArgumentError(f"these are {columns.SHORTER}", hints=["zoom in: the timeline then shows each of them"])
    return run.answer(("event", row), lambda trace: _told(trace, row))


def _told(trace: Trace, row: int) -> dict[str, Any]:
    found = trace.events.slice(row, 1).collect()
    told = dict(zip(found.columns, plain(found.row(0)), strict=True))
    name = told["operator"] or told["kernel_name"]
    same = (col("kind") == told["kind"]) & (NAME.cast(polars.String) == name)
    alike = trace.events.filter(same).select("dur_ns", "start_ns").collect()
    own = told["dur_ns"] or 0
    return {
        "event": {name: value for name, value in told.items() if value is not None},
        "calls": len(alike),
        "nth": int((alike["start_ns"] <= told["start_ns"]).sum()),
        "median_us": alike.select(col("dur_ns").median() / 1e3).item(),
        "no_longer_pct": alike.select(100 * (col("dur_ns") <= own).mean()).item(),
    }
