"""What a GPU can do: ceilings turned into the rates that the cost models of GPUs multiply, and where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tessera.errors import UnsupportedTargetError
from tessera.scheduling.model.gpu_constants import (
    BYTES_IN_FLIGHT,
    KNOWN,
    L2_DIES,
    LATENCY_CYCLES,
    OTHERS_IN_FLIGHT,
    GpuConstants,
)
from tessera.target import Ceilings, Target
from tessera.target.facts import GpuLimits

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
    bytes_in_flight: float
    sources: Mapping[str, str]
    constants: GpuConstants = KNOWN

    @property
    def is_nvidia(self) -> bool:
        """Whether this is one of NVIDIA's."""
        return self.arch.startswith("sm_")


def gpu_machine(target: Target, measured: Ceilings | None = None, constants: GpuConstants = KNOWN) -> GpuMachine:
    """The rates of `target`: measured where they were (`measured`, or the target's own ceilings), else published or
    estimated, less what never lasts.

    Raises UnsupportedTargetError for a GPU of which neither measurements nor published figures are known.
    """
    given = target.ceilings
    if measured is None and given is not None and given.source.startswith("measured"):
        measured = given
    hbm, hbm_source = _bandwidth(target, measured, "HBM", constants.streamed)
    if target.gpu is None or not hbm:
        raise UnsupportedTargetError(
            f"nothing is known of how fast {target.name} is", hints=["measure it: `tessera doctor --measure`"]
        )
    cores, sheet = target.cores, target.datasheet
    best = [sheet.peak(peak.dtype) or peak for peak in sheet.peaks] if sheet is not None else []
    published = {peak.dtype: peak.published for peak in best}
    if given is not None and given is not measured:
        published |= {row.dtype: row.flop_per_s for row in given.compute}
    flops = {dtype: constants.sustained * rate for dtype, rate in published.items()}
    vector = sheet.peak("fp32", "vector") if sheet is not None else None
    flops |= {row.dtype: row.flop_per_s for row in (measured.compute if measured else ()) if row.workers == cores}
    clock = _clock(target, flops)
    per_clock = constants.l2_bytes_per_clock * L2_DIES.get(target.arch, 1)
    l2, l2_source = _bandwidth(target, measured, "L2", 1.0)
    latency = LATENCY_CYCLES.get(target.arch, LATENCY_CYCLES["sm_90"])
    level = target.level("L2")
    compute_source = (
        measured.source if measured and measured.compute else f"{constants.sustained:.0%} of {_source(given)}"
    )
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
        l2_bytes=constants.usable_l2 * level.size_bytes * cores / max(level.shared_by, 1) if level is not None else 0.0,
        shared_byte_per_s=constants.shared_bytes_per_clock * clock,
        latency_s=(constants.loaded * latency[0] / clock, constants.loaded * latency[1] / clock),
        bytes_in_flight=constants.in_flight * BYTES_IN_FLIGHT.get(target.arch, OTHERS_IN_FLIGHT),
        constants=constants,
        sources=MappingProxyType(
            {
                "compute": compute_source,
                "HBM": hbm_source,
                "L2": l2_source or f"taken to be {per_clock:.0f} bytes a clock",
            }
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
