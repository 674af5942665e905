"""Tiles of GPUs, from the words that their kernels write."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.tiles.device_tiles import CLOCK_COST, NO_PLACES, DeviceTiles, Words, covered
from tessera.profiling.tiles.tiles import HELD


def words(*tiles: tuple[int, int, int]) -> Words:
    return numpy.array(tiles, numpy.int64)


def test_durations_are_in_nanoseconds_whatever_the_clock_counts() -> None:
    tiles = DeviceTiles(10.0, 4)
    assert tiles.collect(words((100, 130, 0), (105, 125, 1))) == (1000, 1300)
    assert (tiles.calls, tiles.count, tiles.total, tiles.shortest, tiles.longest) == (1, 2, 500, 200, 300)
    assert sorted(tiles.durations()) == [200, 300]
    assert tiles.collect(words((200, 201, 0))) == (2000, 2010)
    assert (tiles.calls, tiles.count, tiles.total, tiles.shortest, tiles.longest) == (2, 3, 510, 10, 300)


def test_a_multiprocessor_is_busy_while_it_has_tiles_however_many() -> None:
    tiles = DeviceTiles(1.0, 2)
    tiles.collect(words((0, 10, 0), (5, 15, 0), (20, 30, 0), (0, 30, 1)))
    assert tiles.busy == 25 + 30
    tiles.collect(words((1000, 1001, 1)))
    assert tiles.busy == 56
    assert tiles.unavailable == {"clock_pct": CLOCK_COST}


def test_where_tiles_ran_is_unknown_from_the_first_call_that_does_not_tell() -> None:
    tiles = DeviceTiles(1.0, 2)
    tiles.collect(words((0, 10, -1)))
    tiles.collect(words((20, 30, 0)))
    unknown = tiles.busy
    assert unknown is None
    assert tiles.unavailable == {"clock_pct": CLOCK_COST, "occupancy_pct": NO_PLACES}
    tiles.forget()
    assert (tiles.busy, tiles.calls, tiles.shortest, tiles.advance_ns) == (0, 0, None, None)


def test_the_clock_advances_by_what_all_readings_have_in_common() -> None:
    tiles = DeviceTiles(1.0, 1)
    tiles.collect(words((64, 64, 0)))
    stood_still = tiles.advance_ns
    assert stood_still is None
    tiles.collect(words((96, 288, 0)))
    assert tiles.advance_ns == 192
    tiles.collect(words((1000, 1032, 0), (1096, 1160, 0)))
    assert tiles.advance_ns == 32


def test_of_many_tiles_those_of_the_last_calls_are_held() -> None:
    tiles = DeviceTiles(1.0, 1)
    for call in range(3):
        begins = numpy.arange(HELD // 2 + 1, dtype=numpy.int64) * 100
        tiles.collect(numpy.stack([begins, begins + 1 + call, 0 * begins], axis=1))
    assert tiles.count == 3 * (HELD // 2 + 1)
    assert set(tiles.durations().tolist()) == {3}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=30))
def test_covered_time_is_that_of_the_instants_in_any_interval(intervals: list[tuple[int, int, int]]) -> None:
    starts, lengths, places = (numpy.array(column, numpy.int64) for column in zip(*intervals, strict=True))
    instants = {(place, instant) for start, length, place in intervals for instant in range(start, start + length)}
    assert covered(starts, starts + lengths, places) == len(instants)
