"""One row of the table of kernels in full: how its calls spread, over time, and what is known of the first of them."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels, operations
from tessera.profiling.analyses.durations import KEYS
from tessera.profiling.trace.table import Trace
from tessera.viewer.pages.scope import Parameters, narrowed, seen
from tessera.viewer.pages.tables import plain
from tessera.viewer.runs import Run

MOST_ROWS: Final = 20
"""Rows, the first ones, of which a report in one file tells this."""
BINS: Final = 24
MOST_CALLS: Final = 400
Durations = NDArray[numpy.float64]
"""In microseconds."""
_FACTS: Final = ("shapes", "fused", "rewrites", "region", "stack", "traffic", "plan_id", "step_id")


def kernel(run: Run, asked: Parameters) -> dict[str, Any]:
    """Of a `row` of `answers.kernel_table` for the same window, region and rank: `bins`, how many calls took how long,
    as [from, to (microseconds), calls]; `calls` over time, as [instant (nanoseconds), microseconds], the slowest of
    each few where there are many, both empty where sums alone were kept; `facts` of the first call; and `tune`, the
    call that tunes it where shapes are known.

    Raises ArgumentError for a row that there is not.
    """
    text = asked.get("row", "")
    if not text.isdecimal() or int(text) >= operations.MOST_ROWS:
        raise ArgumentError(f"row={text!r}", hints=["the number of a kernel of its own"])
    told = run.answer(("kernel", text, seen(asked)), lambda trace: _told(narrowed(trace, asked), [int(text)]))
    if not told:
        raise ArgumentError(f"row={text}", hints=["the number of a kernel of its own"])
    return told[0]


def first_kernels(run: Run) -> list[dict[str, Any]]:
    """The same of the first `MOST_ROWS` rows of the whole run, at once."""
    return run.answer("kernels told", lambda trace: _told(trace, list(range(MOST_ROWS))))


def _told(trace: Trace, rows: list[int]) -> list[dict[str, Any]]:
    found = (
        operations.works(trace)
        .with_row_index("row")
        .filter(col("row").is_in(rows) & (col("row") < operations.MOST_ROWS))
    )
    own = found.select("row", *KEYS).with_columns(col(polars.String).cast(polars.Categorical())).lazy()
    facts = {f"of {name}": col(name) for name in _FACTS}
    timed = kernels.kernels(trace).with_columns(kernel=kernels.NAME).with_columns(**facts)
    of_rows = timed.join(own, on=KEYS, nulls_equal=True).group_by("row")
    firsts = [col(name).drop_nulls().first() for name in facts]
    calls = of_rows.agg("start_ns", *firsts, taken=col("dur_ns") / 1e3).collect(engine="streaming")
    places = {row: place for place, row in enumerate(calls["row"])}
    known = calls.drop("row", "start_ns", "taken").rows()
    told: list[dict[str, Any]] = []
    for key in found.iter_rows(named=True):
        place = places.get(key["row"])
        if place is None:  # sums alone were kept
            told.append({"bins": [], "calls": [], "facts": {}, "tune": None})
            continue
        starts, taken = (calls[name][place].to_numpy() for name in ("start_ns", "taken"))
        order = numpy.argsort(starts, kind="stable")
        about = dict(zip(_FACTS, plain(known[place]), strict=True))
        told.append(
            {
                "bins": _bins(taken),
                "calls": _over_time(starts[order], taken[order]),
                "facts": {name: value for name, value in about.items() if value not in (None, "")},
                "tune": _tuning(key, about),
            }
        )
    return told


def _bins(taken: Durations) -> list[tuple[float, float, int]]:
    """Bins of equal ratio from the shortest to the longest."""
    low, high = float(taken.min()), float(taken.max())
    if low == high:
        return [(low, high, len(taken))]
    counts, edges = numpy.histogram(taken, numpy.geomspace(low, high * (1 + 1e-9), BINS + 1))
    return [(float(a), float(b), int(count)) for a, b, count in zip(edges, edges[1:], counts, strict=False)]


def _over_time(starts: NDArray[numpy.int64], taken: Durations) -> list[tuple[int, float]]:
    step = -(-len(taken) // MOST_CALLS)
    slowest = [begin + int(taken[begin : begin + step].argmax()) for begin in range(0, len(taken), step)]
    return list(zip(starts[slowest].tolist(), taken[slowest].tolist(), strict=True))


def _tuning(key: dict[str, Any], facts: dict[str, Any]) -> str | None:
    """The call of `autotune` for a kernel of one operator whose shapes are known."""
    name = key["kernel"] or ""
    if not facts["shapes"] or not name.isidentifier() or facts["fused"] not in (None, "", name):
        return None
    shapes = [tuple(shape) for shape in json.loads(facts["shapes"])]
    return f'autotune("{name}", shapes={shapes}, dtype="{key["dtype"] or "fp32"}")'
