"""AMD's data center GPUs as their data sheets describe them. A multiprocessor is a compute unit (CU) here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.datasheet import DataSheet, Interconnect, Link, MemoryFacts, Peak
from tessera.target.facts import GpuLimits, MemoryLevel, Target

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_LINE = 128
_UNITS, _DIES, _CLOCK_HZ = 304, 8, 2100e6

_SHEET = "AMD Instinct MI300X Accelerator, data sheet"
_PAPER = "AMD CDNA 3 Architecture, white paper"
_ISA = "AMD Instinct MI300 Instruction Set Architecture, reference guide"

_RATES: Mapping[tuple[str, Literal["matrix", "vector"]], tuple[int, float]] = {
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
"""(dtype, unit) -> (operations a clock of one compute unit, published operations/s over 10^12)."""

_MEMORY = (
    MemoryFacts(
        "shared", f"{_PAPER}, 64 KB of local data share", 128 * _UNITS * _CLOCK_HZ, f"{_PAPER}: 128 bytes a clock"
    ),
    MemoryFacts("L1", f"{_PAPER}, 32 KB vector data cache", 64 * _UNITS * _CLOCK_HZ, f"{_PAPER}: 64 bytes a clock"),
    MemoryFacts(
        "L2",
        f"{_PAPER}, 4 MB in each of 8 dies, which do not share it",
        2048 * _DIES * _CLOCK_HZ,
        f"{_PAPER}: 16 channels of 128 bytes a clock in each die",
    ),
    MemoryFacts("Infinity Cache", f"{_PAPER}, 256 MB", 17.2e12, f"{_PAPER}: peak bandwidth of 17.2 TB/s"),
    MemoryFacts("HBM", f"{_SHEET}, 192 GB HBM3", 5.3e12, f"{_SHEET}, peak theoretical memory bandwidth"),
)

_LEVELS = (
    MemoryLevel("shared", 64 * _KIB, _LINE, 1),
    MemoryLevel("L1", 32 * _KIB, _LINE, 1),
    MemoryLevel("L2", 4 * _MIB, _LINE, _UNITS // _DIES),
    MemoryLevel("Infinity Cache", 256 * _MIB, _LINE, _UNITS),
    MemoryLevel("HBM", 192 * _GIB, _LINE, _UNITS),
)


def _mi300x() -> Target:
    peaks = tuple(
        Peak(dtype, unit, per_clock, _CLOCK_HZ, published * 1e12, f"{_SHEET}, performance (peak, dense)")
        for (dtype, unit), (per_clock, published) in _RATES.items()
    )
    sheet = DataSheet(
        device_names=("AMD Instinct MI300X",),
        peaks=peaks,
        memory=_MEMORY,
        clock_hz=_CLOCK_HZ,
        clock_source=f"{_SHEET}, peak engine clock",
        power_w=750,
        power_source=f"{_SHEET}, maximum TBP",
        interconnect=Interconnect(
            (
                Link("Infinity Fabric", 4, 7, 64e9, "peers", f"{_SHEET}, 7 links, 128 GB/s each, both ways together"),
                Link("PCIe", 5, 1, 64e9, "host", f"{_SHEET}, PCIe Gen 5 x16, 128 GB/s"),
            )
        ),
        sources=(("multiprocessors", f"{_SHEET}, compute units"), ("limits", f"{_ISA}, and {_PAPER}")),
    )
    best = {peak.dtype: sheet.peak(peak.dtype) or peak for peak in peaks}
    known = [(facts.level, facts.byte_per_s) for facts in _MEMORY if facts.byte_per_s and facts.level in ("L2", "HBM")]
    return Target(
        kind="gpu",
        arch="gfx942",
        name="MI300X",
        features=frozenset(),
        vector_bits=128,  # the widest load of one lane
        vector_registers=0,
        cores=_UNITS,
        processors=_UNITS,
        memory=_LEVELS,
        gpu=GpuLimits(64, 32, 131_072, 512, 64 * _KIB, 64 * _KIB, 32),
        datasheet=sheet,
        ceilings=Ceilings(
            "gfx942",
            "MI300X",
            peaks[0].source,
            tuple(ComputeCeiling(dtype, _UNITS, peak.published) for dtype, peak in best.items()),
            tuple(MemoryCeiling(level, _UNITS, rate) for level, rate in known),
        ),
    )


TARGETS: tuple[Target, ...] = (_mi300x(),)
"""The first of each architecture stands for it."""
