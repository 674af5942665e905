"""What one worker of a CPU can do: ceilings turned into the rates that the cost model multiplies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tessera.scheduling.language.columns import Columns, Knobs, Number, divided, piecewise, smaller
from tessera.scheduling.model.estimate import LEVELS, PARTS
from tessera.target import Ceilings, Target
from tessera.target.ceilings import ComputeCeiling, MemoryCeiling
from tessera.target.facts import USUAL_FMA_LATENCY, USUAL_STREAMS, USUAL_TLB_PAGES, USUAL_WAKE_S

L1, L2, L3, DRAM = range(len(LEVELS))

USABLE: Final = 0.75
"""The share of a cache that one operand can count on; the rest holds what streams past it (Low et al., "Analytical
Modeling Is Enough for High-Performance BLIS", ACM TOMS 43, 2016, keep ways free for each stream)."""

USABLE_LAST: Final = 0.4
"""The same of the last cache, which others use, too: layer norms that walk 16 and 24 MiB run at DRAM's rate on Zen 4
(32 MiB of L3)."""

PAGE: Final = 4096
"""Bytes of a page, and the distance of addresses that fall into one set of L1: a set is chosen by the bits inside a
page, so that a cache has as many ways as it holds pages.
"""
USUAL_WAYS: Final = 8
SPILL_CYCLES: Final = 2
"""Cycles for a vector that is written to memory and back because there is no register for it."""
ROW_CYCLES: Final = 20
"""Per row and pass: the loop over whole steps, the masked rest, the sum across lanes. Norms, means and softmax of 1024
and 4096 rows of 16 fp32 take 15 to 30 on Zen 4, where rows overlap."""
REORDERED: Final = 320
"""Instructions that wait for their operands at once (the reorder buffer of Zen 4; 512 on Golden Cove)."""

_UNIT_FLOP_PER_CYCLE: Final = 1024
"""Of bf16 by a matrix unit: a product of 16 x 32 by 32 x 16 begins every 16 cycles (Intel, Optimization Reference
Manual, section on AMX)."""
_ESTIMATED_CLOCK_HZ: Final = 3.5e9
_ESTIMATED_BYTES_PER_CYCLE: Final = {"L2": 32.0, "L3": 12.0}
_ESTIMATED_DRAM: Final = (18e9, 40e9)  # byte/s of one worker, and of all together


def estimated_ceilings(target: Target, workers: int) -> Ceilings:
    """Ceilings of a CPU that nobody measured, from its vector width and what its kind usually has per cycle.

    They rank schedules well enough to start from; `source` says that they are estimates.
    """
    starts = target.fma_per_cycle
    vector_bytes = target.vector_bits // 8
    cycles = workers / target.core.cycle_s if target.core is not None else _ESTIMATED_CLOCK_HZ * workers
    flops = {name: 2 * starts * cycles * vector_bytes / size for name, size in (("fp32", 4), ("fp64", 8))}
    if target.has_avx512bf16:
        flops["bf16"] = _UNIT_FLOP_PER_CYCLE * cycles if target.has_amx_bf16 else 2 * flops["fp32"]
    if target.has_amx_int8:
        flops["int8"] = 2 * _UNIT_FLOP_PER_CYCLE * cycles
    if target.core is not None:
        flops |= {dtype: rate * flops["fp32"] for dtype, rate in target.core.dots if dtype in flops}
    loads = target.core.loads_per_cycle if target.core is not None else starts
    bandwidth = {"L1": loads * vector_bytes * cycles}
    bandwidth |= {name: per_cycle * cycles for name, per_cycle in _ESTIMATED_BYTES_PER_CYCLE.items()}
    one, all_ = _ESTIMATED_DRAM
    bandwidth["DRAM"] = min(one * workers, all_)
    return Ceilings(
        target.arch,
        target.name,
        "estimate from the vector width at 3.5 GHz" if target.core is None else "estimate from what a cycle does",
        tuple(ComputeCeiling(name, workers, value) for name, value in flops.items()),
        tuple(MemoryCeiling(name, workers, value) for name, value in bandwidth.items()),
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """One worker's share of a CPU on which `workers` run at once.

    `flop_per_s` by dtype name, of vector instructions; `unit_flop_per_s` of a matrix unit, empty where there is none;
    `byte_per_s` and `capacity` (bytes of a level that this worker can count on; infinite
    for DRAM) by level; `cycle_s` the length of a cycle as the arithmetic peak implies it; `source` is the ceilings'.
    `fma_latency` is in cycles, `tlb_pages` are what the first translation buffer reaches, `near_ways` the lines of L1
    that fall into one set, `wake_s` the seconds for starting and joining the other workers, `streams` the rows of
    memory that are fetched ahead while they are read in turn.
    """

    flop_per_s: Mapping[str, float]
    byte_per_s: Mapping[str, float]
    capacity: Mapping[str, float]
    cycle_s: float
    vector_bytes: int
    source: str
    unit_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    fma_latency: int = USUAL_FMA_LATENCY
    tlb_pages: int = USUAL_TLB_PAGES
    near_ways: int = USUAL_WAYS
    wake_s: float = USUAL_WAKE_S
    streams: int = USUAL_STREAMS
    _ladder: tuple[tuple[int, float], ...] = field(init=False, repr=False)
    _places: NDArray[np.intp] = field(init=False, repr=False)
    _sizes: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ladder = tuple((LEVELS.index(level), size) for level, size in self.capacity.items())
        object.__setattr__(self, "_ladder", ladder)
        object.__setattr__(self, "_places", np.array([place for place, _ in ladder], np.intp))
        object.__setattr__(self, "_sizes", np.maximum.accumulate([size for _, size in ladder]))

    def bandwidth(self, place: int) -> float:
        """Bytes a second of the level at a place in `LEVELS`."""
        return self.byte_per_s[LEVELS[place]]

    def home(self, nbytes: Number) -> Number:
        """The place in `LEVELS` of the nearest level that holds that many bytes of this worker's."""
        if isinstance(nbytes, np.ndarray):
            return self._places[np.searchsorted(self._sizes, nbytes)]
        return next((place for place, size in self._ladder if nbytes <= size), DRAM)


@dataclass(slots=True)
class Work:
    """What the slowest worker has to do: arithmetic in seconds, and traffic in bytes by the place in `LEVELS` of the
    level that data comes from or goes to, both beside each other; and packing, which nothing else overlaps with,
    likewise. `exposed_s` are seconds of loads that nothing hides. `parts` are what arithmetic would take if nothing but
    one thing held it up, by `estimate.PARTS`.

    Of many schedules at once, each number is an array.
    """

    compute_s: Number
    traffic: list[Number] = field(default_factory=lambda: [0.0] * len(LEVELS))
    packing_s: Number = 0.0
    packing: list[Number] = field(default_factory=lambda: [0.0] * len(LEVELS))
    exposed_s: Number = 0.0
    parts: dict[str, Number] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def move(self, level: Number, nbytes: Number) -> None:
        """Adds traffic of a level, given by its place in `LEVELS`."""
        _add(self.traffic, level, nbytes)

    def pack(self, level: Number, nbytes: Number) -> None:
        """Adds traffic of packing."""
        _add(self.packing, level, nbytes)

    @classmethod
    def piecewise(
        cls, schedules: Knobs, condition: Number, then: Callable[[Any], Work], otherwise: Callable[[Any], Work]
    ) -> Work:
        """The work of schedules for which a condition holds by `then`, that of others by `otherwise`."""
        if not isinstance(schedules, Columns):
            return then(schedules) if condition else otherwise(schedules)
        numbers = piecewise(schedules, condition, lambda s: then(s)._numbers, lambda s: otherwise(s)._numbers)
        compute_s, traffic, packing_s, packing, exposed_s, parts = numbers
        named = dict(zip(PARTS, parts, strict=True))
        return cls(compute_s, list(traffic), packing_s, list(packing), exposed_s, named)

    @property
    def _numbers(self) -> tuple[Number, ...]:
        parts = tuple(self.parts[name] for name in PARTS)
        return self.compute_s, tuple(self.traffic), self.packing_s, tuple(self.packing), self.exposed_s, parts


def _add(traffic: list[Number], level: Number, nbytes: Number) -> None:
    if not isinstance(level, np.ndarray):
        traffic[level] = traffic[level] + nbytes
        return
    for place in np.unique(level):
        traffic[place] = traffic[place] + np.where(level == place, nbytes, 0.0)


def machine(ceilings: Ceilings | None, target: Target, workers: int) -> Machine:
    """The rates of one of `workers` workers, from the ceilings where they know them, else estimated."""
    guess = estimated_ceilings(target, workers)
    flops = {row.dtype: _flops(ceilings, guess, row.dtype, workers) / workers for row in guess.compute}
    bandwidth = {level: _bandwidth(ceilings, guess, level, workers) / workers for level in LEVELS}
    capacity = {
        level.name: (USABLE_LAST if level.name == "L3" else USABLE)
        * target.cache_bytes(level.name)
        / min(workers, level.shared_by)
        for level in target.memory
        if level.name in LEVELS[:-1] and level.size_bytes
    }
    vector_bytes = target.vector_bits // 8
    cycle_s = 2 * target.fma_per_cycle * vector_bytes / 4 / flops["fp32"]
    source = ceilings.source if ceilings is not None else guess.source
    unit = {}
    if target.has_amx_bf16:  # whose ceilings are those of the unit
        unit["bf16"], flops["bf16"] = flops["bf16"], 2 * flops["fp32"]
    if target.has_amx_int8:
        unit["int8"] = flops.pop("int8")
    return Machine(
        flops, bandwidth, {**capacity, "DRAM": float("inf")}, cycle_s, vector_bytes, source, unit, target.fma_latency,
        target.tlb_pages, max(target.cache_bytes("L1") // PAGE, 1) if target.level("L1") else USUAL_WAYS, target.wake_s,
        target.streams,
    )  # fmt: skip


def largest_share(extent: Number, step: Number, workers: int) -> Number:
    """The most that one worker gets of an extent that is cut at multiples of `step`."""
    return smaller(extent, divided(divided(extent, step), workers) * step)


def _flops(ceilings: Ceilings | None, guess: Ceilings, dtype: str, workers: int) -> float:
    measured = (
        _nearest({row.workers: row.flop_per_s for row in ceilings.compute if row.dtype == dtype}, workers)
        if ceilings
        else None
    )
    fallback = guess.flop_per_s(dtype, workers)
    assert fallback is not None
    return measured or fallback


def _bandwidth(ceilings: Ceilings | None, guess: Ceilings, level: str, workers: int) -> float:
    rows = (
        {row.workers: row.byte_per_s for row in ceilings.memory if (row.level, row.access) == (level, "read")}
        if ceilings
        else {}
    )
    fallback = guess.byte_per_s(level, workers)
    assert fallback is not None
    if level == "DRAM" and rows and workers not in rows:
        # Memory saturates: more workers than were measured get no more in all than the most that were.
        return rows[max(rows)] if workers > max(rows) else _nearest(rows, workers) or fallback
    return _nearest(rows, workers) or fallback


def _nearest(measured: Mapping[int, float], workers: int) -> float | None:
    """The total of `workers`: as measured, else scaled from the nearest number of workers that was."""
    if not measured:
        return None
    known = min(measured, key=lambda count: (abs(count - workers), count))
    return measured[known] * workers / known
