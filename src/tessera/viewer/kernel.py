"""One row of the table of kernels in full: how its calls spread, over time, and what is known of the first of them."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy
import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels, operations
from tessera.profiling.trace.table import Trace
from tessera.viewer.answers import Parameters, narrowed, seen
from tessera.viewer.runs import Run
from tessera.viewer.tables import plain

MOST_ROWS: Final = 20
"""Rows, the first ones, of which a report in one file tells this."""
BINS: Final = 24
MOST_CALLS: Final = 400
_FACTS: Final = ("shapes", "fused", "rewrites", "region", "stack", "traffic", "plan_id", "step_id")


def kernel(run: Run, asked: Parameters) -> dict[str, Any]:
    """Of a `row` of `answers.kernel_table` for the same window, region and rank: `bins`, how many calls took how long,
    as [from, to (microseconds), calls]; `calls` over time, as [instant (nanoseconds), microseconds], the slowest of
    each few where there are many; `facts` of the first call; and `tune`, the call that tunes it where shapes are known.

    Raises ArgumentError for a row that there is not.
    """
    text = asked.get("row", "")
    if not text.isdecimal():
        raise ArgumentError(f"row={text!r}", hints=["a whole number"])
    return run.answer(("kernel", text, seen(asked)), lambda trace: _told(narrowed(trace, asked), int(text)))


def _told(trace: Trace, row: int) -> dict[str, Any]:
    found = operations.works(trace).slice(row, 1)
    if found.is_empty() or row >= operations.MOST_ROWS:
        raise ArgumentError(f"row={row}", hints=["that of a kernel of its own"])
    key = found.row(0, named=True)
    own = kernels.kernels(trace).filter(
        polars.all_horizontal(each.eq_missing(polars.lit(key[name])) for name, each in operations.KEYS.items())
    )
    calls = own.select("start_ns", taken=col("dur_ns") / 1e3).sort("start_ns").collect(engine="streaming")
    first = own.select(_FACTS).head(1).collect()
    facts = dict(zip(_FACTS, plain(first.row(0)), strict=True))
    return {
        "bins": _bins(calls["taken"]),
        "calls": _over_time(calls),
        "facts": {name: value for name, value in facts.items() if value not in (None, "")},
        "tune": _tuning(key, facts),
    }


def _bins(taken: polars.Series) -> list[tuple[float, float, int]]:
    """Bins of equal ratio from the shortest to the longest."""
    low, high = float(taken.min()), float(taken.max())  # type: ignore[arg-type]
    if low == high:
        return [(low, high, len(taken))]
    counts, edges = numpy.histogram(taken.to_numpy(), numpy.geomspace(low, high * (1 + 1e-9), BINS + 1))
    return [(float(a), float(b), int(count)) for a, b, count in zip(edges, edges[1:], counts, strict=False)]


def _over_time(calls: polars.DataFrame) -> list[list[float]]:
    step = -(-len(calls) // MOST_CALLS)
    groups = calls.group_by(polars.int_range(polars.len()) // step, maintain_order=True)
    slowest = groups.agg(polars.all().sort_by("taken").last()) if step > 1 else calls
    return [[at, taken] for at, taken in slowest.select("start_ns", "taken").iter_rows()]


def _tuning(key: dict[str, Any], facts: dict[str, Any]) -> str | None:
    """The call of `autotune` for a kernel of one operator whose shapes are known."""
    name = key["kernel"] or ""
    if not facts["shapes"] or not name.isidentifier() or facts["fused"] not in (None, "", name):
        return None
    shapes = [tuple(shape) for shape in json.loads(facts["shapes"])]
    return f'autotune("{name}", shapes={shapes}, dtype="{key["dtype"] or "fp32"}")'
