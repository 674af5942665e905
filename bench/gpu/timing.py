"""Seconds of work on a GPU, with the L2 cache emptied before each call or left as the call before left it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

Cache = Literal["cold", "warm"]
Call = Callable[[], object]

ROUNDS = 15
"""Every contender is called so often, in turn; the median of its samples counts."""
SEARCH_ROUNDS = 5
"""The same where only the fastest of ours is looked for."""
WARM_CALLS = 20
"""The most calls of one warm sample."""
BURST_S = 1e-3
"""About the longest warm sample, and how long a GPU was seen to keep its clocks at full load."""
REST, LONGEST_REST_S = 4.0, 0.02
"""A pause after each sample, in spans of the sample, and the most of it.

An H100 that multiplies without pause falls from 780 to 350 TFLOP/s within some milliseconds and comes back as
suddenly, whoever's kernel it runs, so that contenders timed one after the other were compared at different clocks.
"""
EMPTYING_BYTES = 512 * 2**20
"""Written before a cold call: several times the largest L2 (126 MiB on a B200)."""
SETTLING_CALLS = 3

Sample = Callable[[], float]
"""Times a contender once, in seconds of one call."""


class Timer(Protocol):
    """What times calls."""

    def prepared(self, call: Call, cache: Cache) -> Sample:
        """The call made ready: compiled, recorded, run a few times."""


class CudaTimer:
    """CUDA events around a CUDA graph of one call with a cold cache, of up to `WARM_CALLS` calls with a warm one: the
    host's part of a call would be counted wherever it takes longer than what runs before.
    """

    def __init__(self) -> None:
        self.filler = torch.empty(EMPTYING_BYTES, dtype=torch.int8, device="cuda")

    def prepared(self, call: Call, cache: Cache) -> Sample:
        """The call made ready; each sample is followed by a rest."""
        for _ in range(SETTLING_CALLS):
            call()
        one = _captured(call, 1)
        if cache == "cold":
            return lambda: self._rested(_between(one), emptied=True)
        seconds = self._rested(_between(one), emptied=False)
        count = min(max(int(BURST_S / max(seconds, 1e-9)), 1), WARM_CALLS)
        many = _captured(call, count)
        return lambda: self._rested(_between(many), emptied=False) / count

    def _rested(self, timed: Callable[[], Span], emptied: bool) -> float:
        if emptied:
            self.filler.zero_()
        span = timed()
        torch.cuda.synchronize()
        seconds = _seconds(span)
        time.sleep(min(REST * seconds, LONGEST_REST_S))
        return seconds


Span = tuple[Any, Any]


def _between(call: Call) -> Callable[[], Span]:
    """Makes the call between two events, which it gives."""

    def timed() -> Span:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        call()
        last.record()
        return first, last

    return timed


def _seconds(span: Span) -> float:
    elapsed: float = span[0].elapsed_time(span[1])
    return elapsed / 1e3


def _captured(call: Call, count: int) -> Call:
    """`count` calls as one graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph.replay


def interleaved(calls: Mapping[str, Call], cache: Cache, timer: Timer, rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each of several calls, sampled in turn."""
    samples = {name: timer.prepared(call, cache) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, sample in samples.items():
            found[name].append(sample())
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def fastest(calls: Mapping[str, Call], timer: Timer) -> str:
    """The name of the fastest of several calls, with a cold cache."""
    seconds = interleaved(calls, "cold", timer, SEARCH_ROUNDS)
    return min(seconds, key=seconds.__getitem__)


def geomean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return statistics.geometric_mean(values)
