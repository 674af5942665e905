"""The ring: every launch is a record or a counted drop, whatever the speed of the reader."""

from __future__ import annotations

import threading
import time

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.ring.recorder import Clock, Ring
from tests.unit.profiling.support import write


@given(st.lists(st.integers(0, 40), max_size=8))
def test_launched_is_recorded_plus_dropped_whatever_the_bursts(bursts: list[int]) -> None:
    ring = Ring(16)
    for burst in bursts:
        write(ring, burst)
        drained = ring.drain()
        assert drained.launched == burst == len(drained.records) + drained.dropped
        assert drained.overwritten == max(0, burst - 16)


def test_oldest_records_are_the_ones_overwritten() -> None:
    ring = Ring(4)
    write(ring, 6, start=0)
    drained = ring.drain()
    assert drained.column("sequence").tolist() == [3, 4, 5, 6]
    assert drained.column("start").tolist() == [20, 30, 40, 50]


def test_record_that_is_never_finished_is_counted_and_not_shown() -> None:
    ring = Ring(8)
    write(ring, 2)
    write(ring, 1, finished=False)
    drained = ring.drain()
    assert (drained.launched, len(drained.records), drained.unfinished) == (3, 2, 1)
    assert ring.drain().launched == 0


@pytest.mark.parametrize("capacity", [0, 1, 3, 100])
def test_capacity_is_a_power_of_two(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Ring(capacity)


def test_reading_while_others_write_loses_nothing_unseen() -> None:
    ring = Ring(64)
    done = threading.Event()

    def writer() -> None:
        for _ in range(200):
            write(ring, 7)
        done.set()

    thread = threading.Thread(target=writer)
    thread.start()
    launched = kept = dropped = 0
    seen: list[int] = []
    while not done.is_set() or ring.written > launched:
        drained = ring.drain()
        launched += drained.launched
        kept += len(drained.records)
        dropped += drained.dropped
        seen += drained.column("sequence").tolist()
    thread.join()
    assert launched == 1400 == kept + dropped
    assert seen == sorted(set(seen))


def test_clock_converts_ticks_to_the_systems_nanoseconds() -> None:
    # A clock that ticks three times a nanosecond, from an origin of its own.
    clock = Clock(lambda: 3 * time.monotonic_ns() + 12345)
    before = time.monotonic_ns()
    instants = numpy.array([3 * before + 12345, 3 * (before + 1_000_000) + 12345], dtype=numpy.int64)
    converted = clock.to_ns(instants)
    assert abs(int(converted[1] - converted[0]) - 1_000_000) < 20_000
    assert abs(int(converted[0]) - before) < 1_000_000
