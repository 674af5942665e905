"""Calls timed beside each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tessera.tuning.measure.clock import ContentionMeter, time_batch

COMPARISON_S = 1.0
BATCH_S = 2e-3
SETTLE_S = 0.01
"""Pause before a batch: torch's idle threads spin for some milliseconds and would slow the next call."""

FEWEST_QUIET = 3


def compare(calls: Mapping[str, Callable[[], object]], seconds: float | None = None) -> dict[str, tuple[float, bool]]:
    """The median seconds of each call, taking turns for `seconds` (default: `COMPARISON_S`), and whether it rests on
    undisturbed samples.

    Samples taken while other programs wanted the CPU are dropped, unless fewer than three others are left. Of a call
    that takes longer than `seconds` one sample is enough, as bf16 products of torch on a CPU without bf16.
    """
    seconds = COMPARISON_S if seconds is None else seconds
    meter = ContentionMeter()
    quiet: dict[str, list[float]] = {name: [] for name in calls}
    every: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or any(len(taken) < fewest(taken, seconds) for taken in every.values()):
        for name, call in calls.items():
            if every[name] and every[name][0] >= seconds:
                continue
            time.sleep(SETTLE_S)
            sample = time_batch(_without_result(call), BATCH_S, meter)
            every[name].append(sample.seconds)
            if not sample.contended:
                quiet[name].append(sample.seconds)
    enough = {name: len(quiet[name]) >= fewest(every[name], seconds) for name in calls}
    return {name: (statistics.median((quiet if enough[name] else every)[name]), enough[name]) for name in calls}


def fewest(taken: Sequence[float], seconds: float) -> int:
    """How many samples a median needs, given those that were taken."""
    return 1 if taken and taken[0] >= seconds else FEWEST_QUIET


def _without_result(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        call()

    return run
