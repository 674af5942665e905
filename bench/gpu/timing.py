"""Seconds of work on a GPU, with the L2 cache emptied before each call or left as the call before left it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

Cache = Literal["cold", "warm"]
Call = Callable[[], object]

ROUNDS = 3
"""Every contender is measured so often, in turn; the median of its rounds counts."""
COLD_CALLS = 20
WARM_CALLS = 20
EMPTYING_BYTES = 512 * 2**20
"""Written before a cold call: several times the largest L2 (126 MiB on a B200), and longer than the host needs to
launch what is timed, so that its launch overhead is not.
"""
SETTLING_CALLS = 3


class Timer(Protocol):
    """Times one call in seconds."""

    def seconds(self, call: Call, cache: Cache) -> float:
        """The median of a few calls."""


class CudaTimer:
    """CUDA events around each cold call; around one CUDA graph of `WARM_CALLS` calls for warm ones.

    Where a call cannot be captured into a graph, warm calls are timed one by one, behind each other.
    """

    def __init__(self) -> None:
        self.filler = torch.empty(EMPTYING_BYTES, dtype=torch.int8, device="cuda")

    def seconds(self, call: Call, cache: Cache) -> float:
        """The median of a few calls."""
        for _ in range(SETTLING_CALLS):
            call()
        torch.cuda.synchronize()
        return self._cold(call) if cache == "cold" else self._warm(call)

    def _cold(self, call: Call) -> float:
        spans = []
        for _ in range(COLD_CALLS):
            self.filler.zero_()
            spans.append(_between(call))
        torch.cuda.synchronize()
        return statistics.median(_seconds(span) for span in spans)

    def _warm(self, call: Call) -> float:
        many = _captured(call)
        spans = [_between(many) for _ in range(5)]
        torch.cuda.synchronize()
        return statistics.median(_seconds(span) for span in spans) / WARM_CALLS


Span = tuple[Any, Any]


def _between(call: Call) -> Span:
    """The events before and after a call."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    call()
    last.record()
    return first, last


def _seconds(span: Span) -> float:
    elapsed: float = span[0].elapsed_time(span[1])
    return elapsed / 1e3


def _captured(call: Call) -> Call:
    """`WARM_CALLS` calls as one graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(WARM_CALLS):
            call()
    return graph.replay


def interleaved(calls: Mapping[str, Call], cache: Cache, timer: Timer) -> dict[str, float]:
    """Median seconds of each of several calls, taken in turn."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rounds[name].append(timer.seconds(call, cache))
    return {name: statistics.median(found) for name, found in rounds.items()}


def fastest(calls: Mapping[str, Call], timer: Timer) -> str:
    """The name of the fastest of several calls, each timed once with a warm cache."""
    return min(calls, key=lambda name: timer.seconds(calls[name], "warm"))


def geomean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return statistics.geometric_mean(values)
