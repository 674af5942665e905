"""Overlap of intervals: the sweep in batches gives what counting instant by instant gives."""

from __future__ import annotations

import numpy
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.analyses.sweep import BusyTime, DisorderError, overlaps

INTERVALS = st.lists(st.tuples(st.integers(-50, 100), st.integers(1, 40)), max_size=30)


def counted(intervals: list[tuple[int, int]], first: int, end: int) -> int:
    return sum(any(start <= at < start + length for start, length in intervals) for at in range(first, end))


@given(INTERVALS, INTERVALS, st.integers(1, 5))
def test_covered_time_is_what_counting_gives(
    events: list[tuple[int, int]], asked: list[tuple[int, int]], batch: int
) -> None:
    ordered = sorted(events)
    instants = numpy.unique([edge for start, length in asked for edge in (start, start + length)]).astype(numpy.int64)
    busy = BusyTime(instants)
    for begin in range(0, len(ordered), batch):
        starts, lengths = numpy.array(ordered[begin : begin + batch], dtype=numpy.int64).T
        busy.take(starts, starts + lengths)
    busy.finish()
    at = dict(zip(instants.tolist(), busy.covered_at.tolist(), strict=True))
    for start, length in asked:
        assert at[start + length] - at[start] == counted(events, start, start + length)
    assert busy.covered == counted(events, -60, 160)


def test_intervals_out_of_order_are_refused_by_the_sweep_and_sorted_by_its_caller() -> None:
    busy = BusyTime(numpy.zeros(0, numpy.int64))
    busy.take(numpy.array([10]), numpy.array([20]))
    with pytest.raises(DisorderError):
        busy.take(numpy.array([5]), numpy.array([6]))
    events = polars.LazyFrame({"rank": [0, 0], "start_ns": [10, 5], "dur_ns": [10, 7]})
    asked = polars.DataFrame({"rank": [0], "start_ns": [0], "end_ns": [100]})
    covered, spans = overlaps(events, asked)
    assert covered.tolist() == [15]
    assert (spans[0].busy_ns, spans[0].span_ns, spans[0].events) == (15, 15, 2)


def test_ranks_do_not_overlap_each_other() -> None:
    events = polars.LazyFrame({"rank": [0, 1], "start_ns": [0, 50], "dur_ns": [10, 10]})
    asked = polars.DataFrame({"rank": [0, 1, 2], "start_ns": [0, 0, 0], "end_ns": [100, 55, 100]})
    covered, _ = overlaps(events, asked)
    assert covered.tolist() == [10, 5, 0]
