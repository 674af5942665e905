"""Where the time of a run went, of each rank and of each step: parts that sum to the whole."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import col

from tessera.profiling.trace.table import Trace

Instants = NDArray[numpy.int64]

PARTS: Final = {
    "kernel": "kernels",
    "collective": "collectives exposed",
    "memcpy": "copies exposed",
    "operator": "eager operators",
}
"""Kinds of events, and what their time is called where nothing of an earlier kind ran beside them. The rest is idle."""
IDLE: Final = "idle"
MOST_STEPS: Final = 500
_STEP: Final = r"^step \d+$"
"""As `Session.step` calls its marks."""


class Sweep:
    """How much time before each of some instants is covered by intervals, which come by start, piece by piece."""

    def __init__(self, instants: Instants) -> None:
        self.instants = numpy.unique(instants)
        self._covered = numpy.zeros(len(self.instants), numpy.int64)
        self._reach = -(1 << 62)
        self._last = self._reach
        self.is_ordered = True

    def take(self, starts: Instants, ends: Instants) -> None:
        """Further intervals. Where these do not come by start, `is_ordered` is False, and the rest is worth nothing."""
        if not len(starts):
            return
        self.is_ordered &= bool(starts[0] >= self._last) and bool((starts[1:] >= starts[:-1]).all())
        reach = numpy.maximum.accumulate(numpy.concatenate([[self._reach], ends]))
        begins = numpy.maximum(starts, reach[:-1])
        lengths = numpy.maximum(ends, reach[:-1]) - begins
        before = numpy.concatenate([[0], numpy.cumsum(lengths)])
        place = numpy.searchsorted(begins, self.instants, "right")
        inside = numpy.clip(self.instants - begins[place - 1], 0, lengths[place - 1])
        self._covered += numpy.where(place > 0, before[place - 1] + inside, 0)
        self._reach, self._last = int(reach[-1]), int(starts[-1])

    def until(self, instants: Instants) -> Instants:
        """The time covered before these of the instants."""
        found: Instants = self._covered[numpy.searchsorted(self.instants, instants)]
        return found


def overview(trace: Trace, seen: tuple[int, int] | None = None) -> dict[str, Any]:
    """`window` in nanoseconds, what is `seen` where that is given; by rank the milliseconds of each part; and the same
    by step, of those that are seen, with where steps come from.
    All parts of a rank sum to the window, those of a step to the step.
    """
    end = col("start_ns") + col("dur_ns").fill_null(0).clip(0)
    read = trace.events.select("kind", "start_ns", "thread_id", "kernel_name", col("rank").fill_null(0), end_ns=end)
    of_parts = read.filter(col("kind").is_in(list(PARTS)))
    spans = (
        of_parts.group_by("rank", "kind")
        .agg(polars.len(), first=col("start_ns").min(), last=col("end_ns").max())
        .collect(engine="streaming")
    )
    marked = read.filter(col("kind").is_in(["region", "mark"])).rename({"kernel_name": "name"}).collect()
    edges = marked.select(first=col("start_ns").min(), last=col("end_ns").max())
    everything = _window(polars.concat([spans.select("first", "last"), edges]), trace.metadata)
    window = seen or everything
    numbers = sorted({*spans["rank"], *marked["rank"]})
    source, found, of_steps = None, marked.select("name", "start_ns", "end_ns").clear(), None
    for rank in numbers:
        if found.is_empty():
            of_steps = rank
            source, found = _steps(marked.filter(col("rank") == rank), everything)
    found = found.filter((col("start_ns") < window[1]) & (col("end_ns") > window[0]))
    starts, ends = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    edges_of = {rank: numpy.array(window) for rank in numbers}
    if of_steps is not None:
        edges_of[of_steps] = numpy.concatenate([numpy.array(window), starts, ends])
    sweeps = _swept(of_parts, edges_of)
    first, last = numpy.array(window[:1]), numpy.array(window[1:])
    ranks = [{"rank": rank, "parts": _parts(sweeps[rank], first, last)[0]} for rank in numbers]
    steps = []
    if len(found) and of_steps is not None:
        parts = _parts(sweeps[of_steps], starts, ends)
        steps = [{**step, "parts": each} for step, each in zip(found.to_dicts(), parts, strict=True)]
    return {
        "window": list(window),
        "parts": [*PARTS.values(), IDLE],
        "ranks": ranks,
        "steps": steps[:MOST_STEPS],
        "steps_total": len(steps),
        "steps_from": source,
        "kernels": int(spans.filter(col("kind") == "kernel")["len"].sum()),
    }


def _window(edges: polars.DataFrame, metadata: Mapping[str, Any]) -> tuple[int, int]:
    """From the `first` to the `last` instant of a trace: the session's where it says so and holds all events."""
    begin, last = int(edges["first"].min() or 0), int(edges["last"].max() or 0)  # type: ignore[arg-type]
    first = min(0, begin)
    duration = metadata.get("duration_ns")
    if not isinstance(duration, int):  # of another profiler, whose zero may lie anywhere
        first, duration = begin, last
    return first, max(last, duration, first + 1)


def _swept(events: polars.LazyFrame, instants: Mapping[int, Instants]) -> dict[int, list[Sweep]]:
    """By rank what is covered before its instants by the first kind, by the first two, and so on. The events are read
    as a stream, as there may be millions; once more by start where they did not come so.
    """
    for ordered in (events, events.sort("start_ns")):
        sweeps = {rank: [Sweep(own) for _ in PARTS] for rank, own in instants.items()}
        ordered.select("rank", "kind", "start_ns", "end_ns").sink_batches(functools.partial(_take, sweeps))
        if all(sweep.is_ordered for own in sweeps.values() for sweep in own):
            break
    return sweeps


def _take(sweeps: Mapping[int, list[Sweep]], batch: polars.DataFrame) -> None:
    for rank, own in sweeps.items():
        of_rank = batch.filter(col("rank") == rank) if len(sweeps) > 1 else batch
        for place, sweep in enumerate(own):
            kinds = list(PARTS)[: place + 1]
            covering = of_rank.filter(col("kind").is_in(kinds))
            sweep.take(covering["start_ns"].to_numpy(), covering["end_ns"].to_numpy())


def _parts(sweeps: list[Sweep], starts: Instants, ends: Instants) -> list[list[float]]:
    """Of each interval the milliseconds of each part, idle last."""
    within = numpy.stack([each.until(ends) - each.until(starts) for each in sweeps])
    own = numpy.diff(numpy.concatenate([numpy.zeros_like(within[:1]), within, [ends - starts]]), axis=0)
    parts: list[list[float]] = (own.T / 1e6).tolist()
    return parts


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
