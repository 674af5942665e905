"""Which batches count, and in which order contenders are asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import bench.timing
from bench.timing import BATCH_S, LONG_CALL_S, Batch, Budget, Samples, calibrate, interleave, time_batch


@dataclass
class Recorded:
    """A runner that replays batches and notes when it was asked."""

    name: str
    log: list[str]
    batches: Iterator[Batch]

    def batch(self) -> Batch:
        self.log.append(self.name)
        return next(self.batches)


@dataclass
class Clock:
    """A clock that advances by one second per reading."""

    now: float = field(default=-1.0)

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def endless(seconds: float, contended: bool = False) -> Iterator[Batch]:
    while True:
        yield Batch(seconds, contended)


def test_contenders_take_turns() -> None:
    log: list[str] = []
    runners = {name: Recorded(name, log, endless(1.0)) for name in "ABC"}
    interleave(runners, Budget(seconds=0.0, kept=2, rounds=2), settle_s=0.0)
    assert log == list("ABCABC")


def test_contended_batches_are_left_out_of_the_median() -> None:
    samples = Samples()
    for seconds in (1.0, 2.0, 3.0):
        samples.add(Batch(seconds, contended=False))
    samples.add(Batch(100.0, contended=True))
    assert samples.median == 2.0
    assert samples.quiet


def test_too_few_quiet_batches_fall_back_on_all_and_say_so() -> None:
    samples = Samples()
    samples.add(Batch(1.0, contended=False))
    for seconds in (3.0, 5.0):
        samples.add(Batch(seconds, contended=True))
    assert samples.median == 3.0
    assert not samples.quiet


def test_a_disturbed_machine_stops_at_the_limit() -> None:
    log: list[str] = []
    runners = {"A": Recorded("A", log, endless(1.0, contended=True))}
    found = interleave(runners, Budget(seconds=1.0, kept=5, limit_s=7.0), settle_s=0.0, clock=Clock())
    assert len(found["A"].contended) == 7


def test_no_contenders_give_no_samples() -> None:
    assert interleave({}, Budget()) == {}


def test_a_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no median"):
        _ = Samples().median


def test_a_batch_warms_up_and_then_runs_the_calls_asked_for() -> None:
    calls: list[int] = []
    batch = time_batch(lambda: calls.append(1), 8)
    assert len(calls) == 8 + 3
    assert batch.seconds > 0.0
    time_batch(lambda: calls.append(1), 1, warm=False)
    assert len(calls) == 12


@dataclass
class Work:
    """Calls that take seconds of a clock of their own: those given, in turn, then `usual_s` each."""

    usual_s: float
    durations: Iterator[float] = field(default_factory=lambda: iter(()))
    now: float = 0.0

    def __call__(self) -> None:
        self.now += next(self.durations, self.usual_s)

    def perf_counter(self) -> float:
        return self.now


def test_short_calls_make_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(BATCH_S / 200, iter([BATCH_S / 200, BATCH_S]))  # one of those that are timed is disturbed
    monkeypatch.setattr(bench.timing, "time", work)
    assert calibrate(work) == 200


def test_a_first_call_that_compiles_does_not_make_batches_small(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(BATCH_S / 200, iter([2 * LONG_CALL_S]))
    monkeypatch.setattr(bench.timing, "time", work)
    assert calibrate(work) == 200
