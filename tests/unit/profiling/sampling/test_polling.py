"""The native loop that reads numbers: which, when, and when it stops."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tessera.profiling.counters.interfaces import Polled
from tessera.profiling.sampling.polling import Outcome, Polling

INTERVAL_NS = 1_000_000


@contextmanager
def opened(path: Path, content: bytes) -> Iterator[int]:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def started(*sources: Polled) -> Polling:
    polling = Polling(sources, INTERVAL_NS)
    polling.begin(time.monotonic_ns())
    return polling


def test_numbers_of_files_and_clocks_are_read_until_pythons_turn(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    with opened(tmp_path / "x", b"12 345 6789012345678\n") as file:
        clock = Polled(time.CLOCK_MONOTONIC, is_clock=True)
        polling = started(Polled(file, 1), clock, Polled(file), Polled(file, 2))
        first = polling.deadline_ns
        assert polling.run(first + 3 * INTERVAL_NS) == Outcome.TURN
    times, values = polling.take()
    assert polling.tick_ns >= first + 3 * INTERVAL_NS
    assert (polling.tick_ns - first) % INTERVAL_NS == 0
    assert polling.deadline_ns > polling.tick_ns
    assert len(times) == polling.ticks == (polling.deadline_ns - first) // INTERVAL_NS - polling.missed
    assert values[0, [0, 2, 3]].tolist() == [345, 12, 6789012345678]
    assert (values[:, 1] >= times).all()
    assert (values[:, 1] - times < 10e9).all()
    assert before < times[0] <= times[-1] < time.monotonic_ns()
    assert len(polling.take()[0]) == 0


@pytest.mark.parametrize("content", [b"", b"12", b"12 ", b"12 x", b" 12"])
def test_a_number_that_is_not_there_leaves_its_row_out(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path / "x", content) as file:
        polling = started(Polled(time.CLOCK_MONOTONIC, is_clock=True), Polled(file, 2 if content[:1] == b" " else 1))
        assert polling.run(time.monotonic_ns()) == Outcome.FAILED
    assert polling.ticks == 0
    assert len(polling.take()[0]) == 0


def test_a_clock_that_is_not_there_fails() -> None:
    assert started(Polled(1 << 20, is_clock=True)).run(time.monotonic_ns()) == Outcome.FAILED


def test_a_full_plan_waits_for_python_and_loses_nothing() -> None:
    polling = Polling([Polled(time.CLOCK_MONOTONIC, is_clock=True)], INTERVAL_NS)
    found = []
    for _ in range(600):  # by one instant each, so that it need not wait for the clock
        polling.begin(time.monotonic_ns())
        outcome = polling.run(0)
        if outcome == Outcome.FULL:
            found += polling.take()[0].tolist()
            assert polling.run(0) == Outcome.TURN
    found += polling.take()[0].tolist()
    assert len(found) == polling.ticks == 600
    assert found == sorted(set(found))


def test_instants_that_have_passed_are_counted_not_made_up_for() -> None:
    polling = Polling([], INTERVAL_NS)
    first = time.monotonic_ns() - 100 * INTERVAL_NS
    polling.begin(first)
    assert polling.run(0) == Outcome.TURN
    assert (polling.ticks, polling.tick_ns) == (1, first)
    assert polling.missed >= 100
    assert polling.deadline_ns == first + (1 + polling.missed) * INTERVAL_NS


def test_after_the_end_nothing_is_read() -> None:
    polling = started(Polled(time.CLOCK_MONOTONIC, is_clock=True))
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(polling.run(2**63 - 1)))
    thread.start()
    limit = time.monotonic() + 60
    while not polling.ticks and time.monotonic() < limit:
        time.sleep(0.001)
    polling.end()
    read = polling.ticks
    thread.join(60)
    assert outcomes == [Outcome.ENDED]
    assert polling.ticks == read > 0
    polling.end()
    assert polling.run(0) == Outcome.ENDED
