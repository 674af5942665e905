"""Where the time of a run went, of each rank and of each step: parts that sum to the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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


class Covered(NamedTuple):
    """Disjoint intervals by start, and the time that they cover before each."""

    starts: Instants
    ends: Instants
    before: Instants

    def until(self, instants: Instants) -> Instants:
        """The time covered before these instants."""
        if not len(self.starts):
            return numpy.zeros(len(instants), numpy.int64)
        place = numpy.maximum(numpy.searchsorted(self.starts, instants, "right") - 1, 0)
        inside = numpy.clip(instants - self.starts[place], 0, self.ends[place] - self.starts[place])
        until: Instants = self.before[place] + inside
        return until


def covered(starts: Instants, ends: Instants) -> Covered:
    """The union of intervals."""
    if not len(starts):
        return Covered(starts, ends, starts)
    if not bool((starts[1:] >= starts[:-1]).all()):
        order = numpy.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = numpy.maximum.accumulate(ends)
    new = numpy.flatnonzero(numpy.concatenate([[True], starts[1:] > reach[:-1]]))
    first, last = starts[new], reach[numpy.append(new[1:] - 1, len(starts) - 1)]
    lengths = last - first
    return Covered(first, last, numpy.cumsum(lengths) - lengths)


def overview(trace: Trace, seen: tuple[int, int] | None = None) -> dict[str, Any]:
    """`window` in nanoseconds, what is `seen` where that is given; by rank the milliseconds of each part; and the same
    by step, of those that are seen, with where steps come from.
    All parts of a rank sum to the window, those of a step to the step.
    """
    ends = col("start_ns") + col("dur_ns").fill_null(0).clip(0)
    read = trace.events.select("kind", "start_ns", "thread_id", "kernel_name", col("rank").fill_null(0), end_ns=ends)
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
    ranks = []
    steps: list[dict[str, Any]] = []
    source = None
    for rank in sorted({*spans["rank"], *marked["rank"]}):
        unions = _unions(of_parts.filter(col("rank") == rank))
        ranks.append({"rank": rank, "parts": _parts(unions, numpy.array(window[:1]), numpy.array(window[1:]))[0]})
        if not steps:
            source, found = _steps(marked.filter(col("rank") == rank), everything)
            found = found.filter((col("start_ns") < window[1]) & (col("end_ns") > window[0]))
            parts = _parts(unions, found["start_ns"].to_numpy(), found["end_ns"].to_numpy())
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


def _unions(events: polars.LazyFrame) -> list[Covered]:
    """The time covered by the first kind, by the first two, and so on; each is read alone, as there may be millions."""
    unions: list[Covered] = []
    for kind in PARTS:
        own = events.filter(col("kind") == kind).select("start_ns", "end_ns").collect(engine="streaming")
        starts, ends = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        del own
        union = covered(starts, ends)
        if unions:
            before = unions[-1]
            both = numpy.concatenate([before.starts, union.starts]), numpy.concatenate([before.ends, union.ends])
            union = covered(*both)
        unions.append(union)
    return unions


def _parts(unions: list[Covered], starts: Instants, ends: Instants) -> list[list[float]]:
    """Of each interval the milliseconds of each part, idle last."""
    within = numpy.stack([each.until(ends) - each.until(starts) for each in unions])
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
