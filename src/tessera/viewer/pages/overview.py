"""Where the time of a run went, of each rank and of each step: parts that sum to the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import col

from tessera.profiling.analyses import kernels, sweep
from tessera.profiling.trace.table import Trace

Instants = NDArray[numpy.int64]
Intervals = tuple[Instants, Instants]

PARTS: Final = {
    "kernel": "kernels",
    "collective": "collectives exposed",
    "memcpy": "copies exposed",
    "operator": "eager operators",
}
"""Kinds of events, and what their time is called where nothing of an earlier kind ran beside them. The rest is idle."""
IDLE: Final = "idle"
MOST_STEPS: Final = 500
_OTHERS: Final = list(PARTS)[1:]
_STEP: Final = r"^step \d+$"
"""As `Session.step` calls its marks."""


def overview(trace: Trace, seen: tuple[int, int] | None = None) -> dict[str, Any]:
    """`window` in nanoseconds, what is `seen` where that is given; by rank the milliseconds of each part; and the same
    by step, of those that are seen, with where steps come from.
    All parts of a rank sum to the window, those of a step to the step.
    """
    end = col("start_ns") + col("dur_ns").fill_null(0).clip(0)
    read = trace.events.select("kind", "start_ns", "thread_id", "kernel_name", col("rank").fill_null(0), end_ns=end)
    kinds = read.filter(col("kind").is_in(list(PARTS)))
    spans = kinds.select(
        first=col("start_ns").min(),
        last=col("end_ns").max(),
        ranks=col("rank").unique().implode(),
        kernels=(col("kind") == "kernel").sum(),
    ).collect(engine="streaming")
    others = read.filter(col("kind").is_in([*_OTHERS, "region", "mark"])).collect(engine="streaming")
    marked = others.filter(col("kind").is_in(["region", "mark"])).rename({"kernel_name": "name"})
    edges = marked.select(first=col("start_ns").min(), last=col("end_ns").max())
    everything = _window(polars.concat([spans.select("first", "last"), edges]), trace.metadata)
    window = seen or everything
    numbers = sorted({*spans["ranks"].item(), *marked["rank"]})
    source, found, of_steps = None, marked.select("name", "start_ns", "end_ns").clear(), None
    for rank in numbers:
        if found.is_empty():
            of_steps = rank
            source, found = _steps(marked.filter(col("rank") == rank), everything)
    found = found.filter((col("start_ns") < window[1]) & (col("end_ns") > window[0]))
    starts, ends = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    unions = {rank: _unions(others.filter(col("rank") == rank)) for rank in numbers}
    asked = {rank: numpy.concatenate([window, starts, ends, *map(numpy.concatenate, unions[rank])]) for rank in numbers}
    busy = sweep.busy_times(kernels.kernels(trace), asked)
    first, last = numpy.array(window[:1]), numpy.array(window[1:])
    ranks = [{"rank": rank, "parts": _parts(busy[rank], unions[rank], first, last)[0]} for rank in numbers]
    steps = []
    if len(found) and of_steps is not None:
        parts = _parts(busy[of_steps], unions[of_steps], starts, ends)
        steps = [{**step, "parts": each} for step, each in zip(found.to_dicts(), parts, strict=True)]
    return {
        "window": list(window),
        "parts": [*PARTS.values(), IDLE],
        "ranks": ranks,
        "steps": steps[:MOST_STEPS],
        "steps_total": len(steps),
        "steps_from": source,
        "kernels": int(spans["kernels"].item()),
    }


def _window(edges: polars.DataFrame, metadata: Mapping[str, Any]) -> tuple[int, int]:
    """From the `first` to the `last` instant of a trace: the session's where it says so and holds all events."""
    begin, last = int(edges["first"].min() or 0), int(edges["last"].max() or 0)  # type: ignore[arg-type]
    first = min(0, begin)
    duration = metadata.get("duration_ns")
    if not isinstance(duration, int):  # of another profiler, whose zero may lie anywhere
        first, duration = begin, last
    return first, max(last, duration, first + 1)


def _unions(others: polars.DataFrame) -> list[Intervals]:
    """What slices of a rank that are no kernels cover: those of the first kind, of the first two, and so on, each as
    starts and ends of intervals that are disjoint, by start.
    """
    found = []
    for place in range(len(_OTHERS)):
        own = others.filter(col("kind").is_in(_OTHERS[: place + 1])).sort("start_ns")
        starts, reach = own["start_ns"].to_numpy(), numpy.maximum.accumulate(own["end_ns"].to_numpy())
        opens = numpy.flatnonzero(numpy.append(True, starts[1:] > reach[:-1])[: len(starts)])
        found.append((starts[opens], reach[numpy.append(opens[1:], len(starts))[: len(opens)] - 1]))
    return found


def _parts(busy: sweep.BusyTime, unions: list[Intervals], starts: Instants, ends: Instants) -> list[list[float]]:
    """Of each interval the milliseconds of each part, idle last."""
    beside = [_beside(busy, union, ends) - _beside(busy, union, starts) for union in unions]
    within = numpy.stack([numpy.zeros_like(starts), *beside]) + busy.until(ends) - busy.until(starts)
    own = numpy.diff(numpy.concatenate([numpy.zeros_like(within[:1]), within, [ends - starts]]), axis=0)
    parts: list[list[float]] = (own.T / 1e6).tolist()
    return parts


def _beside(busy: sweep.BusyTime, union: Intervals, instants: Instants) -> Instants:
    """The time before instants that intervals cover and no kernel does."""
    starts, ends = union
    before = numpy.append(0, numpy.cumsum(ends - starts - (busy.until(ends) - busy.until(starts))))
    place = numpy.searchsorted(starts, instants, "right")
    covered = before[place]
    inside = numpy.flatnonzero(place > 0)
    inside = inside[instants[inside] < ends[place[inside] - 1]]  # the last interval that began goes on
    at, to = instants[inside], ends[place[inside] - 1]
    covered[inside] -= to - at - (busy.until(to) - busy.until(at))
    return covered


def _steps(events: polars.DataFrame, window: tuple[int, int]) -> tuple[str | None, polars.DataFrame]:
    """The steps of a rank, `name`, `start_ns`, `end_ns`: between the marks of `Session.step`, else the outermost
    regions of the name that most of them have; and where they come from.
    """
    names = col("name").cast(polars.String)
    marks = events.filter((col("kind") == "mark") & names.str.contains(_STEP)).sort("start_ns")
    if len(marks):
        ends = marks["start_ns"]
        starts = ends.shift(1, fill_value=window[0])
        return "session.step()", marks.select(names, start_ns=starts, end_ns=ends)
    regions = events.filter(col("kind") == "region").sort("start_ns", "end_ns", descending=[False, True])
    reach = col("end_ns").cum_max().shift(1, fill_value=window[0] - 1).over("thread_id")
    outermost = regions.filter(col("start_ns") >= reach).with_columns(names)
    if outermost.is_empty():
        return None, outermost.select("name", "start_ns", "end_ns")
    name = outermost["name"].value_counts(sort=True)["name"][0]
    return f"region {name}", outermost.filter(col("name") == name).select("name", "start_ns", "end_ns")
