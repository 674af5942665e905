"""The bound that a measured time is compared with: the slowest of arithmetic and memory at the measured ceilings.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (CACM
52, 2009). The memory level is the nearest one that holds all bytes the step touches, since a working set that stays
in a cache is not bound by DRAM, or the next one whose rate is known: data sheets tell few. One further away that was
measured to be faster takes its place: what it delivers comes through the nearer ones, and a virtual machine may get
next to nothing of a large L3. Arithmetic that has no ceiling (integers, comparisons) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.profiling.recording.facts import StepFacts
from tessera.target import Ceilings, MemoryLevel

ACCESSES = ("read", "copy", "copy_nt")
"""Traffic that kernels make: reads, or reads with writes. The best of them is the bound."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time in seconds that the ceilings allow, and what sets it: "compute", "L1", "L2", "L3" or "DRAM"."""

    seconds: float
    binding: str


def bound(facts: StepFacts, workers: int, ceilings: Ceilings, levels: Sequence[MemoryLevel]) -> Bound | None:
    """The bound of one step on `workers` threads, None where no ceiling for that many was measured."""
    terms: list[Bound] = []
    peak = ceilings.flop_per_s(_arithmetic(facts.dtype, ceilings, workers), workers)
    if peak is not None and facts.flops:
        terms.append(Bound(facts.flops / peak, "compute"))
    rates = [
        (rate, level)
        for level in (_from_holding_level(facts.bytes, workers, levels) if facts.bytes else ())
        for rate in (ceilings.byte_per_s(level, workers, access) for access in ACCESSES)
        if rate is not None
    ]
    if rates:
        fastest, level = max(rates, key=lambda each: each[0])
        terms.append(Bound(facts.bytes / fastest, level))
    return max(terms, key=lambda term: term.seconds, default=None)


def bandwidth(ceilings: Ceilings, level: str, workers: int) -> float:
    """A memory level's ceiling for `workers`, byte/s, as bounds use it: the best access that kernels make.

    Raises ValueError where there is none.
    """
    rows = (row for row in ceilings.memory if (row.level, row.workers) == (level, workers))
    return max(row.byte_per_s for row in rows if row.access in ACCESSES)


def _arithmetic(dtype: str, ceilings: Ceilings, workers: int) -> str:
    """The dtype whose peak applies: narrow floats without arithmetic of their own are computed in fp32."""
    if dtype in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2") and ceilings.flop_per_s(dtype, workers) is None:
        return "fp32"
    return dtype


def _from_holding_level(nbytes: float, workers: int, levels: Sequence[MemoryLevel]) -> list[str]:
    """The nearest level whose instances behind `workers` cores hold `nbytes` together, and those beyond it."""
    for place, level in enumerate(levels):
        instances = max(1, -(-workers // level.shared_by))
        if level.size_bytes and nbytes <= level.size_bytes * instances:
            return [each.name for each in levels[place:]]
    return [levels[-1].name if levels else "DRAM"]
