"""What the machine can do, measured by Tessera's own ceiling kernels, and the bound that follows for a case."""

from __future__ import annotations

from dataclasses import dataclass

from bench.cases import Case
from bench.environments import NotMeasuredError


@dataclass(frozen=True)
class Ceilings:
    """Measured peaks of one thread count: FLOP/s by dtype name, and bytes/s copied from and to memory."""

    flops: dict[str, float]
    bandwidth: float


def measure(threads: int) -> Ceilings:
    """Runs the ceiling kernels with `threads` threads. Raises `NotMeasuredError` when there are none for this CPU."""
    raise NotMeasuredError("Tessera's ceiling kernels are not there")


def bound(case: Case, ceilings: Ceilings) -> tuple[float, str]:
    """The least seconds `case` can take by the roofline model, and which resource sets it.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009: the slower of arithmetic and memory traffic.
    """
    arithmetic = case.flops / ceilings.flops[case.dtype]
    memory = case.bytes / ceilings.bandwidth
    return (arithmetic, "compute") if arithmetic >= memory else (memory, "memory")
