"""How long something ran, and how long it ran beside something else: a sweep over intervals, batch by batch.

The events of a trace come by start, so one pass in bounded memory is enough. Where a trace breaks that order it is
sorted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy
import polars
from numpy.typing import NDArray
from polars import col

Instants = NDArray[numpy.int64]


class DisorderError(Exception):
    """The intervals do not come by start."""


class BusyTime:
    """The time covered by intervals, in nanoseconds, asked at instants that are known beforehand.

    `covered_at[i]` is the length of the union of all intervals before `instants[i]` (sorted), once all are taken.
    """

    def __init__(self, instants: Instants) -> None:
        self.instants = instants
        self._answered = 0
        self._last_start = numpy.iinfo(numpy.int64).min
        self._reach: int | None = None
        self.covered = 0
        self.events = 0
        self.first: int | None = None
        self.covered_at = numpy.zeros(len(instants), numpy.int64)

    @property
    def last(self) -> int | None:
        """The latest end so far."""
        return self._reach

    def take(self, starts: Instants, ends: Instants) -> None:
        """More intervals, by start. Raises DisorderError where they are not."""
        if not len(starts):
            return
        if starts[0] < self._last_start or (numpy.diff(starts) < 0).any():
            raise DisorderError
        self._answer(int(starts[0]))
        if self._reach is None:
            self.first = self._reach = int(starts[0])
        reached = numpy.maximum.accumulate(numpy.concatenate([[self._reach], ends]))
        added = numpy.maximum(0, ends - numpy.maximum(starts, reached[:-1]))
        covered = self.covered + added.cumsum()
        self._answer_within(starts, reached[1:], covered)
        self.events += len(starts)
        self.covered, self._reach, self._last_start = int(covered[-1]), int(reached[-1]), int(starts[-1])

    def finish(self) -> None:
        """There are no more intervals."""
        self._answer(numpy.iinfo(numpy.int64).max)

    def until(self, instants: Instants) -> Instants:
        """The time covered before some of the instants, which may come in any order."""
        found: Instants = self.covered_at[numpy.searchsorted(self.instants, instants)]
        return found

    def _answer(self, before: int) -> None:
        """Answers for instants at or before `before`, given all intervals that start earlier."""
        end = int(numpy.searchsorted(self.instants, before, "right"))
        asked = self.instants[self._answered : end]
        if self._reach is not None:
            self.covered_at[self._answered : end] = self.covered - numpy.maximum(0, self._reach - asked)
        self._answered = max(self._answered, end)

    def _answer_within(self, starts: Instants, reached: Instants, covered: Instants) -> None:
        end = int(numpy.searchsorted(self.instants, starts[-1], "right"))
        asked = self.instants[self._answered : end]
        place = numpy.searchsorted(starts, asked, "right") - 1
        self.covered_at[self._answered : end] = covered[place] - numpy.maximum(0, reached[place] - asked)
        self._answered = max(self._answered, end)


@dataclass(frozen=True)
class Span:
    """Nanoseconds in which at least one of the events ran, of those from the first start to the last end, and how many
    events there were.
    """

    busy_ns: int
    span_ns: int
    events: int


def overlaps(events: polars.LazyFrame, intervals: polars.DataFrame) -> tuple[NDArray[numpy.float64], dict[int, Span]]:
    """For each interval (rank, start_ns, end_ns), nanoseconds in which some event of its rank ran; and each rank's
    span of events.
    """
    ranks, starts, ends = (intervals[name].fill_null(0).to_numpy() for name in ("rank", "start_ns", "end_ns"))
    of_ranks = {rank: ranks == rank for rank in numpy.unique(ranks).tolist()}
    busy = busy_times(events, {rank: numpy.concatenate([starts[own], ends[own]]) for rank, own in of_ranks.items()})
    covered = numpy.zeros(len(intervals))
    for rank, own in of_ranks.items():
        covered[own] = busy[rank].until(ends[own]) - busy[rank].until(starts[own])
    spans = {
        rank: Span(each.covered, each.last - each.first, each.events)
        for rank, each in busy.items()
        if each.first is not None and each.last is not None
    }
    return covered, spans


def busy_times(events: polars.LazyFrame, instants: Mapping[int, Instants]) -> dict[int, BusyTime]:
    """By rank the time in which some event of it ran, for instants in any order; also of ranks without instants."""
    asked = {rank: numpy.unique(own) for rank, own in instants.items()}
    try:
        return _busy_times(events, asked)
    except DisorderError:
        return _busy_times(events.sort("start_ns"), asked)


def _busy_times(events: polars.LazyFrame, instants: Mapping[int, Instants]) -> dict[int, BusyTime]:
    busy = {rank: BusyTime(own) for rank, own in instants.items()}
    for rank, starts, ends in _batches(events):
        busy.setdefault(rank, BusyTime(numpy.zeros(0, numpy.int64))).take(starts, ends)
    for each in busy.values():
        each.finish()
    return busy


def _batches(events: polars.LazyFrame) -> Iterator[tuple[int, Instants, Instants]]:
    wanted = events.select(col("rank").fill_null(0), "start_ns", "dur_ns")
    for batch in wanted.collect_batches(maintain_order=True):
        ranks, starts, durations = (batch[name].to_numpy() for name in batch.columns)
        for rank in numpy.unique(ranks).tolist():
            own = slice(None) if ranks[0] == ranks[-1] == rank and (ranks == rank).all() else ranks == rank
            yield rank, starts[own], starts[own] + durations[own]


def with_overlap(events: polars.DataFrame) -> polars.DataFrame:
    """The events of one rank, with `collective_overlap_pct` of collectives: the share of their time in which a kernel
    ran.
    """
    lasts = events["dur_ns"] > 0
    asked = events.filter(lasts & (events["kind"] == "collective"))
    if asked.is_empty():
        return events
    intervals = asked.select("start_ns", rank=0, end_ns=col("start_ns") + col("dur_ns"))
    covered, _ = overlaps(events.lazy().filter(lasts & (col("kind") == "kernel")).with_columns(rank=0), intervals)
    pct = numpy.full(len(events), numpy.nan, numpy.float32)
    pct[(lasts & (events["kind"] == "collective")).to_numpy()] = 100 * covered / asked["dur_ns"].to_numpy()
    return events.with_columns(collective_overlap_pct=polars.Series(pct, nan_to_null=True))
