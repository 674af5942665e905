from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.tuning.online.slices import LEAST_SAMPLE_S, MOST_SAVED_S, Slices, StoppedError

SECONDS = 60.0
"""No handover between two threads takes longer, on however busy a machine."""


class Clock:
    """Seconds that go by when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def slices(clock: Clock, share: float = 0.1, patience_s: float = SECONDS) -> Slices:
    return Slices(share, clock, clock, patience_s)


@contextmanager
def tuner(made: Slices, work: Callable[[], None]) -> Iterator[threading.Thread]:
    """A thread that works until the slices are stopped."""

    def run() -> None:
        with suppress(StoppedError):
            work()
        made.finish()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        made.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()


def test_working_slices_begin_once_something_is_saved() -> None:
    clock, began = Clock(), threading.Event()
    made = slices(clock)

    def work() -> None:
        made.begin("working")
        began.set()
        made.begin("working")

    with tuner(made, work):
        made.offer()
        assert not began.wait(0.02)
        clock.advance(1.0)
        while not began.wait(0.001):
            made.offer()


def test_a_call_waits_for_a_quiet_slice_and_pays_for_the_wait() -> None:
    clock, done = Clock(), threading.Event()
    made = slices(clock)
    made.expect(0.02)

    def work() -> None:
        made.begin("quiet")
        clock.advance(0.03)
        done.set()
        made.begin("quiet")

    with tuner(made, work):
        while not done.is_set():
            clock.advance(0.1)
            made.offer()
        assert made.taken_s == pytest.approx(0.03)


@given(
    share=st.floats(0.02, 0.9),
    steps=st.lists(st.floats(1e-4, 0.5), min_size=5, max_size=40),
    sample_s=st.floats(1e-4, 0.3),
)
def test_the_share_is_kept_but_for_one_slice(share: float, steps: list[float], sample_s: float) -> None:
    clock = Clock()
    made = slices(clock, share)

    def work() -> None:
        while True:
            made.begin("quiet")
            clock.advance(sample_s)

    with tuner(made, work):
        for step in steps:
            clock.advance(step)
            made.offer()
        taken = made.taken_s
    assert taken <= share * sum(steps) + sample_s + 1e-9


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    made = slices(clock)
    quiet = 0

    def work() -> None:
        nonlocal quiet
        while True:
            made.begin("quiet")
            quiet += 1
            clock.advance(0.01)

    with tuner(made, work):
        made.offer()
        clock.advance(3600.0)
        made.offer()
        for _ in range(100):
            made.offer()
    assert quiet <= MOST_SAVED_S / 0.01 + 1


def test_nobody_waits_for_a_slice_that_does_not_end() -> None:
    clock, began, release = Clock(), threading.Event(), threading.Event()
    made = slices(clock, patience_s=0.001)

    def work() -> None:
        made.begin("quiet")
        began.set()
        release.wait(SECONDS)
        made.begin("quiet")

    with tuner(made, work):
        while not began.is_set():
            clock.advance(1.0)
            made.offer()
        for _ in range(10):  # each would wait for ever if one did
            clock.advance(1.0)
            made.offer()
        assert not release.is_set()
        release.set()


def test_callers_that_cannot_wait_let_the_tuner_go_on_beside_them() -> None:
    clock, began, release = Clock(), threading.Event(), threading.Event()
    made = slices(clock)

    def work() -> None:
        made.begin("quiet")
        began.set()
        release.wait(SECONDS)

    with tuner(made, work):
        while not began.wait(0.001):
            clock.advance(1.0)
            made.offer(waits=False)
        assert made.taken_s == 0.0
        release.set()


def test_samples_are_as_short_as_a_step_pays_for() -> None:
    clock = Clock()
    made = slices(clock)
    assert made.sample_s(2e-3) == LEAST_SAMPLE_S
    for _ in range(100):
        clock.advance(10e-3)
        made.offer()
    assert made.sample_s(2e-3) == pytest.approx(1e-3, rel=0.01)
    for _ in range(100):
        clock.advance(0.5)
        made.offer()
    assert made.sample_s(2e-3) == 2e-3
    made.hurry(True)
    assert made.sample_s(5e-3) == 5e-3


def test_in_a_hurry_nothing_is_waited_for() -> None:
    made = slices(Clock())
    count = threading.Semaphore(0)

    def work() -> None:
        for _ in range(100):
            made.begin("quiet")
            count.release()
            made.begin("working")

    with tuner(made, work):
        made.hurry(True)
        assert all(count.acquire(timeout=SECONDS) for _ in range(100))


def test_threads_may_offer_at_once() -> None:
    clock = Clock()
    made = slices(clock)
    ended = 0

    def work() -> None:
        nonlocal ended
        while True:
            made.begin("quiet")
            clock.advance(0.01)
            ended += 1

    def call() -> None:
        for _ in range(50):
            clock.advance(0.01)
            made.offer()

    with tuner(made, work):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in threads)
    assert 0 < ended < 100
