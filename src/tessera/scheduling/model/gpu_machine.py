"""What a GPU can do: ceilings turned into the rates that the cost models of GPUs multiply, and where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tessera.errors import UnsupportedTargetError
from tessera.target import Ceilings, Target
from tessera.target.facts import GpuLimits

SUSTAINED: Final = 0.80
"""The part of a published matrix peak that lasts: an H200 sustains 769 to 798 of 989 TFLOP/s in cuBLAS' best product
(bf16, 8192 cubed), where its power limit lowers the clock. Measured ceilings need no such factor."""
STREAMED: Final = 0.90
"""The part of a published memory bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200."""
USABLE_L2: Final = 0.75
"""The share of L2 that operands can count on while results stream through it."""
L2_BYTES_PER_CLOCK: Final[Mapping[str, int]] = MappingProxyType({"sm_100": 2 * 5120})
_A100_L2_BYTES_PER_CLOCK: Final = 5120
"""Of NVIDIA's L2 where it is not published: the A100's ("NVIDIA A100 Tensor Core GPU Architecture", L2 cache), twice
for Blackwell's two dies."""
SHARED_BYTES_PER_CLOCK: Final = 128
"""Of one multiprocessor ("CUDA C++ Programming Guide": 32 banks of 4 bytes; CDNA 3's LDS does as much)."""

_LATENCY_CYCLES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({"sm_80": (262, 466), "sm_90": (263, 479)})
"""(hit in L2, memory behind it) of an idle device: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking" (2024); others are taken to be like Hopper."""
LOADED: Final = 2.0
"""How much longer a load takes where memory is kept busy; assumed."""

_BYTES_IN_FLIGHT: Final[Mapping[str, int]] = MappingProxyType(
    {"sm_80": 16 << 10, "sm_90": 48 << 10, "sm_100": 64 << 10}
)
"""Bytes that a multiprocessor must have on their way for memory to be kept busy: NVIDIA's CUB library asks for so many
(`arch_to_min_bytes_in_flight`; by Little's law that is about a microsecond of bandwidth)."""
_OTHERS_IN_FLIGHT: Final = 32 << 10

_FALLBACK_CLOCK_HZ: Final = 1.5e9


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """Rates of a whole GPU in FLOP/s and byte/s, but for `shared_byte_per_s`, one multiprocessor's.

    `clock_hz` is the one that lasts. `flop_per_s` by dtype is the matrix units' (fp32: ordinary instructions',
    `vector_flop_per_s`). `latency_s` is that of a load under way to (L2, memory) on a busy device. `bytes_in_flight` of
    one multiprocessor keep memory busy. `sources` says where each rate comes from.
    """

    name: str
    arch: str
    limits: GpuLimits
    multiprocessors: int
    clock_hz: float
    flop_per_s: Mapping[str, float]
    vector_flop_per_s: float
    hbm_byte_per_s: float
    l2_byte_per_s: float
    l2_bytes: float
    shared_byte_per_s: float
    latency_s: tuple[float, float]
    bytes_in_flight: int
    sources: Mapping[str, str]

    @property
    def is_nvidia(self) -> bool:
        """Whether this is one of NVIDIA's."""
        return self.arch.startswith("sm_")


def gpu_machine(target: Target, measured: Ceilings | None = None) -> GpuMachine:
    """The rates of `target`: measured where they were (`measured`, or the target's own ceilings), else published or
    estimated, less what never lasts.

    Raises UnsupportedTargetError for a GPU of which neither measurements nor published figures are known.
    """
    given = target.ceilings
    if measured is None and given is not None and given.source.startswith("measured"):
        measured = given
    hbm, hbm_source = _bandwidth(target, measured, "HBM", STREAMED)
    if target.gpu is None or not hbm:
        raise UnsupportedTargetError(
            f"nothing is known of how fast {target.name} is", hints=["measure it: `tessera doctor --measure`"]
        )
    cores, sheet = target.cores, target.datasheet
    best = [sheet.peak(peak.dtype) or peak for peak in sheet.peaks] if sheet is not None else []
    published = {peak.dtype: peak.published for peak in best}
    if given is not None and given is not measured:
        published |= {row.dtype: row.flop_per_s for row in given.compute}
    flops = {dtype: SUSTAINED * rate for dtype, rate in published.items()}
    vector = sheet.peak("fp32", "vector") if sheet is not None else None
    flops |= {row.dtype: row.flop_per_s for row in (measured.compute if measured else ()) if row.workers == cores}
    clock = _clock(target, flops)
    per_clock = L2_BYTES_PER_CLOCK.get(target.arch, _A100_L2_BYTES_PER_CLOCK)
    l2, l2_source = _bandwidth(target, measured, "L2", 1.0)
    latency = _LATENCY_CYCLES.get(target.arch, _LATENCY_CYCLES["sm_90"])
    level = target.level("L2")
    compute_source = measured.source if measured and measured.compute else f"{SUSTAINED:.0%} of {_source(given)}"
    return GpuMachine(
        name=target.name,
        arch=target.arch,
        limits=target.gpu,
        multiprocessors=cores,
        clock_hz=clock,
        flop_per_s=MappingProxyType(flops),
        vector_flop_per_s=vector.published if vector is not None else flops.get("fp32", 256 * cores * clock),
        hbm_byte_per_s=hbm,
        l2_byte_per_s=l2 or per_clock * clock,
        l2_bytes=USABLE_L2 * level.size_bytes * cores / max(level.shared_by, 1) if level is not None else 0.0,
        shared_byte_per_s=SHARED_BYTES_PER_CLOCK * clock,
        latency_s=(LOADED * latency[0] / clock, LOADED * latency[1] / clock),
        bytes_in_flight=_BYTES_IN_FLIGHT.get(target.arch, _OTHERS_IN_FLIGHT),
        sources=MappingProxyType(
            {"compute": compute_source, "HBM": hbm_source, "L2": l2_source or f"taken to be {per_clock} bytes a clock"}
        ),
    )


def _clock(target: Target, flop_per_s: Mapping[str, float]) -> float:
    """The clock that the matrix units' lasting rate implies, in Hz: a busy device runs below its boost clock."""
    peak = target.datasheet.peak("bf16", "matrix") if target.datasheet is not None else None
    if peak is None or "bf16" not in flop_per_s:
        return _FALLBACK_CLOCK_HZ
    return flop_per_s["bf16"] / (peak.per_clock * target.cores)


def _bandwidth(target: Target, measured: Ceilings | None, level: str, lasting: float) -> tuple[float, str]:
    """(byte/s, source) of a level; 0.0 and "" where nobody says."""
    for access in ("copy", "read"):
        rate = measured.byte_per_s(level, target.cores, access) if measured is not None else None
        if rate and measured is not None:
            return rate, measured.source
    known = target.byte_per_s(level)
    if not known:
        return 0.0, ""
    facts = target.datasheet.level(level) if target.datasheet is not None else None
    source = facts.source if facts is not None else _source(target.ceilings)
    return lasting * known, source if lasting == 1.0 else f"{lasting:.0%} of {source}"


def _source(ceilings: Ceilings | None) -> str:
    return ceilings.source if ceilings is not None else "nothing"
