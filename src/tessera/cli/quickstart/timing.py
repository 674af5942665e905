"""Calls timed beside each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from tessera.tuning.measure.clock import ContentionMeter, time_batch

COMPARISON_S = 1.0
BATCH_S = 2e-3
SETTLE_S = 0.01
"""Pause before a batch: torch's idle threads spin for some milliseconds and would slow the next call."""

FEWEST_QUIET = 3


def compare(calls: Mapping[str, Callable[[], object]], seconds: float = COMPARISON_S) -> dict[str, tuple[float, bool]]:
    """The median seconds of each call, taking turns, and whether it rests on undisturbed samples.

    Samples taken while other programs wanted the CPU are dropped, unless fewer than three others are left.
    """
    meter = ContentionMeter()
    quiet: dict[str, list[float]] = {name: [] for name in calls}
    every: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(next(iter(every.values()))) < FEWEST_QUIET:
        for name, call in calls.items():
            time.sleep(SETTLE_S)
            sample = time_batch(_without_result(call), BATCH_S, meter)
            every[name].append(sample.seconds)
            if not sample.contended:
                quiet[name].append(sample.seconds)
    enough = {name: len(quiet[name]) >= FEWEST_QUIET for name in calls}
    return {name: (statistics.median((quiet if enough[name] else every)[name]), enough[name]) for name in calls}


def _without_result(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        call()

    return run
