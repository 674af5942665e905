"""Timing one batch of calls, and deciding which batches count.

Source: Linux, ``Documentation/accounting/psi.rst``, describes the "some" line of ``/proc/pressure/cpu``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

BATCH_S = 1e-3
"""Shortest batch, seconds: the clock's and the loop's share stays below 0.1 %."""

SETTLE_S = 0.01
"""Pause before a batch, seconds: an idle OpenMP pool spins for some milliseconds and would steal a core meanwhile."""

CONTENDED_SHARE = 0.03
"""A batch counts as contended when tasks waited for a CPU during more than this share of it."""

LONG_CALL_S = 0.05
"""A call this long, seconds, needs no warm-up call before each batch."""

MINIMUM_KEPT = 3
"""With fewer undisturbed batches than this, the disturbed ones are used too, and the result says so."""

_PRESSURE = Path("/proc/pressure/cpu")


def pressure_us() -> int | None:
    """Microseconds since boot during which some task waited for a CPU; None where the kernel does not say."""
    try:
        first = _PRESSURE.read_text().split("\n", 1)[0]
    except OSError:
        return None
    return int(first.rpartition("total=")[2])


@dataclass(frozen=True)
class Batch:
    """One timed batch: seconds per call, and whether other tasks wanted the CPU meanwhile."""

    seconds: float
    contended: bool


def calibrate(call: Callable[[], object]) -> int:
    """How many calls make a batch of at least `BATCH_S`. Runs `call` until its time has settled.

    The first call is not timed: it may compile, and would pass for a long call.
    """
    call()
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        if best > LONG_CALL_S:
            break
    return max(1, round(BATCH_S / max(best, 1e-8)))


def time_batch(call: Callable[[], object], calls: int, warm: bool = True) -> Batch:
    """Times `calls` calls in a row, after a few untimed ones when `warm`; seconds are per call."""
    if warm:
        for _ in range(1 + calls // 4):
            call()
    before = pressure_us()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - start
    after = pressure_us()
    waited = 0 if before is None or after is None else after - before
    return Batch(elapsed / calls, waited > CONTENDED_SHARE * elapsed * 1e6)


@dataclass
class Samples:
    """All batches of one contender on one case."""

    kept: list[float] = field(default_factory=list)
    contended: list[float] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Files `batch` under kept or contended."""
        (self.contended if batch.contended else self.kept).append(batch.seconds)

    @property
    def quiet(self) -> bool:
        """Whether enough batches ran undisturbed for the median to rest on them alone."""
        return len(self.kept) >= MINIMUM_KEPT

    @property
    def used(self) -> list[float]:
        """The seconds per call that the statistics rest on."""
        return self.kept if self.quiet else self.kept + self.contended

    @property
    def median(self) -> float:
        """Median seconds per call. Raises `statistics.StatisticsError` when nothing was measured."""
        return statistics.median(self.used)

    @property
    def fastest(self) -> float:
        """Fewest seconds per call of any batch used. Raises `ValueError` when nothing was measured."""
        return min(self.used)


class Runner(Protocol):
    """Something that times one batch of itself on request."""

    def batch(self) -> Batch:
        """Times one batch."""


@dataclass(frozen=True)
class Budget:
    """When to stop: after `seconds` once each contender has `kept` undisturbed batches, at `limit_s` in any case."""

    seconds: float = 2.0
    kept: int = 9
    limit_s: float = 6.0
    rounds: int = MINIMUM_KEPT
    """Rounds that run even when one round alone exceeds the limit."""


def interleave(
    runners: Mapping[str, Runner],
    budget: Budget,
    settle_s: float = SETTLE_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Samples]:
    """Asks the runners for batches in turn until `budget` is spent. Returns the samples by the runners' names."""
    samples = {name: Samples() for name in runners}
    start = clock()
    rounds = 0
    while samples:
        for name, runner in runners.items():
            time.sleep(settle_s)
            samples[name].add(runner.batch())
        rounds += 1
        elapsed = clock() - start
        enough = elapsed >= budget.seconds and all(len(s.kept) >= budget.kept for s in samples.values())
        if rounds >= budget.rounds and (enough or elapsed >= budget.limit_s):
            break
    return samples
