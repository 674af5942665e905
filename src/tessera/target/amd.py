"""AMD's data center GPUs as their data sheets describe them. A multiprocessor is a compute unit (CU) here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.datasheet import DataSheet, Interconnect, Link, MemoryFacts, Peak
from tessera.target.facts import GpuLimits, MemoryLevel, Target

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_LINE = 128
_DIES = 8

_SHEET = "AMD Instinct MI300X Accelerator, data sheet"
_PAPER = "AMD CDNA 3 Architecture, white paper"
_ISA = "AMD Instinct MI300 Instruction Set Architecture, reference guide"
_SHEET_355 = "AMD Instinct MI355X GPU, data sheet, as others quote it, not read"
_SPECIFICATIONS = "ROCm documentation, AMD GPU specifications"

_Rates = Mapping[tuple[str, Literal["matrix", "vector"]], tuple[int, float]]
"""(dtype, unit) -> (operations a clock of one compute unit, published operations/s over 10^12)."""

_CDNA_3: _Rates = {
    ("fp64", "matrix"): (256, 163.4),
    ("fp64", "vector"): (128, 81.7),
    ("fp32", "matrix"): (256, 163.4),
    ("fp32", "vector"): (256, 163.4),
    ("tf32", "matrix"): (1024, 653.7),
    ("bf16", "matrix"): (2048, 1307.4),
    ("fp16", "matrix"): (2048, 1307.4),
    ("fp8_e4m3", "matrix"): (4096, 2614.9),
    ("fp8_e5m2", "matrix"): (4096, 2614.9),
    ("int8", "matrix"): (4096, 2614.9),
}
_CDNA_4: _Rates = {
    ("fp64", "matrix"): (128, 78.6),
    ("fp64", "vector"): (128, 78.6),
    ("fp32", "matrix"): (256, 157.3),
    ("fp32", "vector"): (256, 157.3),
    ("bf16", "matrix"): (4096, 2516.6),
    ("fp16", "matrix"): (4096, 2516.6),
    ("fp8_e4m3", "matrix"): (8192, 5033.2),
    ("fp8_e5m2", "matrix"): (8192, 5033.2),
    ("int8", "matrix"): (8192, 5033.2),
}
"""Its matrix units have no tf32."""


def _instinct(
    arch: str,
    name: str,
    rates: _Rates,
    units: int,
    clock_hz: float,
    shared_kib: int,
    memory: tuple[MemoryFacts, ...],
    hbm_gib: int,
    power: tuple[float, str],
    links: tuple[Link, ...],
    source: str,
    limits: str,
) -> Target:
    """An accelerator of eight dies, each with an L2 of its own; `memory` has the published facts of its levels."""
    sheet = DataSheet(
        device_names=(f"AMD Instinct {name}",),
        peaks=tuple(
            Peak(dtype, unit, per_clock, clock_hz, published * 1e12, f"{source}, performance (peak, dense)")
            for (dtype, unit), (per_clock, published) in rates.items()
        ),
        memory=memory,
        clock_hz=clock_hz,
        clock_source=f"{source}, peak engine clock",
        power_w=power[0],
        power_source=power[1],
        interconnect=Interconnect(links),
        sources=(("multiprocessors", f"{source}, compute units"), ("limits", limits)),
    )
    best = {peak.dtype: sheet.peak(peak.dtype) or peak for peak in sheet.peaks}
    known = [(facts.level, facts.byte_per_s) for facts in memory if facts.byte_per_s and facts.level in ("L2", "HBM")]
    return Target(
        kind="gpu",
        arch=arch,
        name=name,
        features=frozenset(),
        vector_bits=128,  # the widest load of one lane
        vector_registers=0,
        cores=units,
        processors=units,
        memory=(
            MemoryLevel("shared", shared_kib * _KIB, _LINE, 1),
            MemoryLevel("L1", 32 * _KIB, _LINE, 1),
            MemoryLevel("L2", 4 * _MIB, _LINE, units // _DIES),
            MemoryLevel("Infinity Cache", 256 * _MIB, _LINE, units),
            MemoryLevel("HBM", hbm_gib * _GIB, _LINE, units),
        ),
        gpu=GpuLimits(64, 32, 131_072, 512, shared_kib * _KIB, shared_kib * _KIB, 32),
        datasheet=sheet,
        ceilings=Ceilings(
            arch,
            name,
            sheet.peaks[0].source,
            tuple(ComputeCeiling(dtype, units, peak.published) for dtype, peak in best.items()),
            tuple(MemoryCeiling(level, units, rate) for level, rate in known),
        ),
    )


def _links(gbyte_per_s: float, each: str, source: str) -> tuple[Link, ...]:
    return (
        Link("Infinity Fabric", 4, 7, gbyte_per_s * 1e9, "peers", f"{source}, 7 links, {each}"),
        Link("PCIe", 5, 1, 64e9, "host", f"{source}, PCIe Gen 5 x16, 128 GB/s"),
    )


def _mi300x() -> Target:
    units, clock_hz = 304, 2100e6
    memory = (
        MemoryFacts(
            "shared", f"{_PAPER}, 64 KB of local data share", 128 * units * clock_hz, f"{_PAPER}: 128 bytes a clock"
        ),
        MemoryFacts("L1", f"{_PAPER}, 32 KB vector data cache", 64 * units * clock_hz, f"{_PAPER}: 64 bytes a clock"),
        MemoryFacts(
            "L2",
            f"{_PAPER}, 4 MB in each of 8 dies, which do not share it",
            2048 * _DIES * clock_hz,
            f"{_PAPER}: 16 channels of 128 bytes a clock in each die",
        ),
        MemoryFacts("Infinity Cache", f"{_PAPER}, 256 MB", 17.2e12, f"{_PAPER}: peak bandwidth of 17.2 TB/s"),
        MemoryFacts("HBM", f"{_SHEET}, 192 GB HBM3", 5.3e12, f"{_SHEET}, peak theoretical memory bandwidth"),
    )
    links = _links(64, "128 GB/s each, both ways together", _SHEET)
    power = (750, f"{_SHEET}, maximum TBP")
    limits = f"{_ISA}, and {_PAPER}"
    return _instinct("gfx942", "MI300X", _CDNA_3, units, clock_hz, 64, memory, 192, power, links, _SHEET, limits)


def _mi355x() -> Target:
    units, clock_hz = 256, 2400e6
    unknown = f"its bandwidth is not published in {_SPECIFICATIONS}"
    memory = (
        MemoryFacts("shared", f"{_SPECIFICATIONS}: 160 KiB of LDS", None, unknown),
        MemoryFacts("L1", f"{_SPECIFICATIONS}: 32 KiB of L1 vector cache", None, unknown),
        MemoryFacts("L2", f"{_SPECIFICATIONS}: 4 MiB in each of 8 dies", None, unknown),
        MemoryFacts("Infinity Cache", f"{_SPECIFICATIONS}: 256 MiB of L3", None, unknown),
        MemoryFacts("HBM", f"{_SPECIFICATIONS}: 288 GiB", 8e12, f"{_SHEET_355}, peak theoretical memory bandwidth"),
    )
    links = _links(76.8, "153.6 GB/s each, both ways together", _SHEET_355)
    power, limits = (1400, f"{_SHEET_355}, maximum TBP"), f"{_SPECIFICATIONS}: 160 KiB of LDS, 512 KiB of registers"
    return _instinct("gfx950", "MI355X", _CDNA_4, units, clock_hz, 160, memory, 288, power, links, _SHEET_355, limits)


TARGETS: tuple[Target, ...] = (_mi300x(), _mi355x())
"""The first of each architecture stands for it."""
