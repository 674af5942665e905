"""The bound that a measured time is compared with: the slowest of arithmetic and memory at the measured ceilings.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures" (CACM
52, 2009). The memory level is the nearest one that holds all bytes the step touches, since a working set that stays
in a cache is not bound by DRAM, or the next one whose rate is known: data sheets tell few. One further away that was
measured to be faster takes its place: what it delivers comes through the nearer ones, and a virtual machine may get
next to nothing of a large L3. Arithmetic that has no ceiling (integers, comparisons) is left out.
"""

from __future__ import annotations

import math
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


class DeviceBounds:
    """The bounds of many steps on one device. What ceilings say of a dtype, and of a number of workers, is looked up
    once.
    """

    def __init__(self, ceilings: Ceilings, levels: Sequence[MemoryLevel]) -> None:
        self._ceilings, self._levels = ceilings, levels
        self._peaks: dict[tuple[str, int], float | None] = {}
        self._memories: dict[int, list[tuple[float, float, str]]] = {}

    def of(self, flops: float, nbytes: float, dtype: str, workers: int) -> Bound | None:
        """The bound of a step on `workers` threads, None where no ceiling for that many was measured."""
        key = dtype, workers
        if key not in self._peaks:
            self._peaks[key] = self._ceilings.flop_per_s(_arithmetic(dtype, self._ceilings, workers), workers)
        if workers not in self._memories:
            self._memories[workers] = self._memory(workers)
        peak = self._peaks[key]
        compute = flops / peak if peak is not None else 0.0
        rate, level = next(((rate, name) for most, rate, name in self._memories[workers] if nbytes <= most), (0.0, ""))
        moved = nbytes / rate if rate else 0.0
        if moved > compute:
            return Bound(moved, level)
        return Bound(compute, "compute") if compute else None

    def _memory(self, workers: int) -> list[tuple[float, float, str]]:
        """Of each level, the nearest first: how many bytes it holds, and the rate and name of the fastest level from it
        on. Levels beyond which nothing was measured are left out.
        """
        found = []
        for most, names in _holding(workers, self._levels):
            rates = [
                (rate, name)
                for name in names
                for rate in (self._ceilings.byte_per_s(name, workers, access) for access in ACCESSES)
                if rate is not None
            ]
            if rates:
                found.append((most, *max(rates, key=lambda each: each[0])))
        return found


def bound(facts: StepFacts, workers: int, ceilings: Ceilings, levels: Sequence[MemoryLevel]) -> Bound | None:
    """The bound of one step on `workers` threads, None where no ceiling for that many was measured."""
    return DeviceBounds(ceilings, levels).of(facts.flops, facts.bytes, facts.dtype, workers)


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


def _holding(workers: int, levels: Sequence[MemoryLevel]) -> list[tuple[float, list[str]]]:
    """For each level, the nearest first: the bytes that its instances behind `workers` cores hold together, and the
    names of it and of those beyond it. The last one holds everything.
    """
    found = []
    for place, level in enumerate(levels):
        instances = max(1, -(-workers // level.shared_by))
        if level.size_bytes:
            found.append((float(level.size_bytes * instances), [each.name for each in levels[place:]]))
    return [*found, (math.inf, [levels[-1].name if levels else "DRAM"])]
