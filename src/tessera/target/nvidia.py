"""NVIDIA's GPUs as their white papers and data sheets describe them: those of data centers, and the largest for games.

Every peak is printed figure and arithmetic at once: multiprocessors x clock x operations a clock must give what is
printed, to a percent (a test says so). Where two documents differ the comment says which one was taken, and why.
Memory sizes are printed in GB and meant in GiB: an A100 of "80 GB" reports 81,920 MiB. The memory of every GPU is the
level "HBM", GDDR too: kernels and models only ask for what lies behind L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.datasheet import DataSheet, Interconnect, Link, MemoryFacts, Peak
from tessera.target.facts import GpuLimits, MemoryLevel, Target

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_GIGA, _TERA = 1e9, 1e12
_LINE = 128

_A100 = "NVIDIA A100 Tensor Core GPU Architecture, white paper V1.0"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU, data sheet, table of specifications"
_ADA = "NVIDIA Ada GPU Architecture, white paper V2.01, appendix A, GeForce RTX 4090, as others quote it, not read"
_H100 = "NVIDIA H100 Tensor Core GPU Architecture, white paper V1.04"
_H100_TABLE = f"{_H100}, table 3, Comparison of NVIDIA A100 and H100 Data Center GPUs"
_H200_SHEET = "NVIDIA H200 Tensor Core GPU, data sheet, technical specifications"
_HGX_B200 = "NVIDIA HGX, data sheet, HGX B200: an eighth of the eight GPUs' figures, halved where printed with sparsity"
_GB200 = "NVIDIA GB200 NVL72, data sheet: half of a superchip's figures, halved where printed with sparsity"
_RTX = "NVIDIA RTX Blackwell GPU Architecture, white paper, appendix A, GeForce RTX 5090, as others quote it, not read"
_BLACKWELL_GUIDE = "CUDA Toolkit 13.0, NVIDIA Blackwell Tuning Guide, Memory System"
_GUIDE = "CUDA C++ Programming Guide, table Technical Specifications per Compute Capability"
_BANKS = "CUDA C++ Programming Guide, Shared Memory: 32 banks of 4 bytes a clock, at the boost clock"
_NO_L2 = "not published for this GPU; NVIDIA gives bytes a clock for the A100 only"


def _limits(shared_kib: int, max_warps: int = 64, max_blocks: int = 32) -> GpuLimits:
    # One KiB of shared memory per block is taken by the system from compute capability 8.0 on.
    return GpuLimits(32, max_warps, 65_536, 255, shared_kib * _KIB, (shared_kib - 1) * _KIB, max_blocks)


_Rates = Mapping[tuple[str, Literal["matrix", "vector"]], tuple[int, float]]
"""(dtype, unit) -> (operations a clock of one multiprocessor, published operations/s over 10^12)."""


def _peaks(rates: _Rates, matrix_hz: float, vector_hz: float, source: str) -> tuple[Peak, ...]:
    """Hopper and Blackwell run their narrow matrix units at a lower boost clock than all else, fp64's included."""
    return tuple(
        Peak(
            dtype,
            unit,
            per_clock,
            matrix_hz if unit == "matrix" and dtype != "fp64" else vector_hz,
            published * _TERA,
            source,
        )
        for (dtype, unit), (per_clock, published) in rates.items()
    )


def _nvlink(generation: int, count: int, gbyte_per_s: float, source: str) -> Link:
    return Link("NVLink", generation, count, gbyte_per_s * _GIGA, "peers", source)


def _pcie(generation: int, gbyte_per_s: float, source: str) -> Link:
    return Link("PCIe", generation, 1, gbyte_per_s * _GIGA, "host", source)


def _target(
    arch: str,
    name: str,
    multiprocessors: int,
    levels: Mapping[str, tuple[int, str]],
    limits: GpuLimits,
    hbm_tbyte_per_s: tuple[float, str],
    l2: tuple[float | None, str],
    sheet: DataSheet,
) -> Target:
    """`levels` gives size in bytes and source; "shared", "L1" and "TMEM" are one multiprocessor's."""
    near = ("shared", "L1", "TMEM")
    bandwidth: dict[str, tuple[float | None, str]] = {
        "shared": (128 * multiprocessors * sheet.clock_hz, _BANKS),
        "L1": (128 * multiprocessors * sheet.clock_hz, _BANKS),
        "TMEM": (None, "not published"),
        "L2": l2,
        "HBM": (hbm_tbyte_per_s[0] * _TERA, hbm_tbyte_per_s[1]),
    }
    facts = tuple(MemoryFacts(level, source, *bandwidth[level]) for level, (_, source) in levels.items())
    best = {peak.dtype: sheet.peak(peak.dtype) or peak for peak in sheet.peaks}
    known = [(level.level, level.byte_per_s) for level in facts if level.byte_per_s and level.level in ("L2", "HBM")]
    sheet = DataSheet(**{**vars(sheet), "memory": facts})
    return Target(
        kind="gpu",
        arch=arch,
        name=name,
        features=frozenset(),
        vector_bits=128,  # the widest load of one thread
        vector_registers=0,
        cores=multiprocessors,
        processors=multiprocessors,
        memory=tuple(
            MemoryLevel(level, size, _LINE, 1 if level in near else multiprocessors)
            for level, (size, _) in levels.items()
        ),
        gpu=limits,
        datasheet=sheet,
        ceilings=Ceilings(
            arch,
            name,
            sheet.peaks[0].source,
            tuple(ComputeCeiling(dtype, multiprocessors, peak.published) for dtype, peak in best.items()),
            tuple(MemoryCeiling(level, multiprocessors, rate) for level, rate in known),
        ),
    )


_AMPERE: _Rates = {
    ("fp64", "matrix"): (128, 19.5),
    ("fp64", "vector"): (64, 9.7),
    ("fp32", "vector"): (128, 19.5),
    ("tf32", "matrix"): (1024, 156.0),
    ("bf16", "matrix"): (2048, 312.0),
    ("fp16", "matrix"): (2048, 312.0),
    ("int8", "matrix"): (4096, 624.0),
}


def _a100(gigabytes: int, hbm_tbyte_per_s: float, device_names: tuple[str, ...]) -> Target:
    table = f"{_A100}, table Comparison of NVIDIA Data Center GPUs"
    sheet = DataSheet(
        device_names=device_names,
        peaks=_peaks(_AMPERE, 1410e6, 1410e6, f"{_A100}, table A100 Tensor Core GPU Performance Specs"),
        memory=(),
        clock_hz=1410e6,
        clock_source=table,
        power_w=400,
        power_source=table,
        interconnect=Interconnect(
            (
                _nvlink(3, 12, 25, f"{_A100}, Third-Generation NVLink: 12 links, 600 GB/s in all"),
                _pcie(4, 31.5, f"{_A100}, PCI Express Gen 4 with SR-IOV: 31.5 GB/s each way over x16"),
            )
        ),
        sources=(("multiprocessors", table), ("limits", f"{_GUIDE}, 8.0")),
    )
    levels = {
        "shared": (164 * _KIB, f"{_GUIDE}, 8.0"),
        "L1": (192 * _KIB, f"{_A100}, combined L1 data cache and shared memory"),
        "L2": (40 * _MIB, table),
        "HBM": (gigabytes * _GIB, _A100_SHEET),
    }
    l2 = (5120 * 1410e6, f"{_A100}, A100 L2 cache: reads 5120 bytes a clock, at the boost clock")
    name = f"A100-SXM4-{gigabytes}GB"
    return _target("sm_80", name, 108, levels, _limits(164), (hbm_tbyte_per_s, _A100_SHEET), l2, sheet)


_ADA_RATES: _Rates = {
    ("fp64", "vector"): (4, 1.29),
    ("fp32", "vector"): (256, 82.6),
    ("tf32", "matrix"): (256, 82.6),
    ("bf16", "matrix"): (512, 165.2),
    ("fp16", "matrix"): (512, 165.2),
    ("fp8_e4m3", "matrix"): (1024, 330.3),
    ("fp8_e5m2", "matrix"): (1024, 330.3),
    ("int8", "matrix"): (2048, 660.6),
}
"""With sums in fp32, as kernels form them; of fp16 and fp8 the card does twice as many with sums in fp16. fp64 is a
64th of fp32, as the white paper says. The RTX 5090 does as many a clock.
"""


_RTX_5090_RATES: _Rates = {
    key: (per_clock, printed)
    for (key, (per_clock, _)), printed in zip(
        _ADA_RATES.items(), (1.637, 104.8, 104.8, 209.5, 209.5, 419.0, 419.0, 838.0), strict=True
    )
}


def _geforce(
    arch: str,
    name: str,
    rates: _Rates,
    multiprocessors: int,
    clock_hz: float,
    power_w: float,
    l2_mib: int,
    memory: tuple[int, float, str],
    host: Link,
    source: str,
) -> Target:
    """A card for games; `memory` is GiB, TB/s and its kind. One block has at most 99 KiB of shared memory."""
    guide = f"{_GUIDE}, {arch[3:-1]}.{arch[-1]}"
    sheet = DataSheet(
        device_names=(f"NVIDIA GeForce {name}",),
        peaks=_peaks(rates, clock_hz, clock_hz, source),
        memory=(),
        clock_hz=clock_hz,
        clock_source=source,
        power_w=power_w,
        power_source=source,
        interconnect=Interconnect((host,)),
        sources=(("multiprocessors", source), ("limits", guide)),
    )
    levels = {
        "shared": (100 * _KIB, guide),
        "L1": (128 * _KIB, f"{source}: combined L1 data cache and shared memory"),
        "L2": (l2_mib * _MIB, source),
        "HBM": (memory[0] * _GIB, f"{source}: {memory[2]}"),
    }
    rate = (memory[1], f"{source}: {memory[2]}")
    limits = _limits(100, 48, 24)
    return _target(arch, name.replace(" ", "-"), multiprocessors, levels, limits, rate, (None, _NO_L2), sheet)


def _rtx_4090() -> Target:
    host = _pcie(4, 31.5, f"{_ADA}: PCI Express Gen 4 over x16, 31.5 GB/s each way")
    memory = (24, 1.008, "GDDR6X, 384 bits at 21 Gbit/s")
    return _geforce("sm_89", "RTX 4090", _ADA_RATES, 128, 2520e6, 450, 72, memory, host, _ADA)


def _rtx_5090() -> Target:
    host = _pcie(5, 63, f"{_RTX}: PCI Express Gen 5 over x16, 63 GB/s each way")
    memory = (32, 1.792, "GDDR7, 512 bits at 28 Gbit/s")
    return _geforce("sm_120", "RTX 5090", _RTX_5090_RATES, 170, 2407e6, 575, 96, memory, host, _RTX)


_HOPPER: _Rates = {
    ("fp64", "matrix"): (256, 66.9),
    ("fp64", "vector"): (128, 33.5),
    ("fp32", "vector"): (256, 66.9),
    ("tf32", "matrix"): (2048, 494.7),
    ("bf16", "matrix"): (4096, 989.4),
    ("fp16", "matrix"): (4096, 989.4),
    ("fp8_e4m3", "matrix"): (8192, 1978.9),
    ("fp8_e5m2", "matrix"): (8192, 1978.9),
    ("int8", "matrix"): (8192, 1978.9),
}


def _hopper(
    name: str, device_names: tuple[str, ...], hbm: tuple[int, float, str], peaks_source: str, power_source: str
) -> Target:
    """The GH100 die of both; `hbm` is GiB, TB/s and where they stand."""
    sheet = DataSheet(
        device_names=device_names,
        # Tensor cores boost to 1830 MHz but for fp64; all else to 1980 MHz.
        peaks=_peaks(_HOPPER, 1830e6, 1980e6, peaks_source),
        memory=(),
        clock_hz=1980e6,
        clock_source=_H100_TABLE,
        power_w=700,
        power_source=power_source,
        interconnect=Interconnect(
            (
                _nvlink(4, 18, 25, f"{_H100}, Fourth-Generation NVLink: 18 links, 900 GB/s in all"),
                _pcie(5, 64, f"{_H100}, PCIe Gen 5: 64 GB/s each way, 128 GB/s in all"),
            )
        ),
        sources=(("multiprocessors", _H100_TABLE), ("limits", f"{_GUIDE}, 9.0")),
    )
    levels = {
        "shared": (228 * _KIB, f"{_GUIDE}, 9.0"),
        "L1": (256 * _KIB, f"{_H100}, combined L1 data cache and shared memory"),
        "L2": (50 * _MIB, _H100_TABLE),
        "HBM": (hbm[0] * _GIB, hbm[2]),
    }
    return _target("sm_90", name, 132, levels, _limits(228), (hbm[1], hbm[2]), (None, _NO_L2), sheet)


_BLACKWELL_PER_CLOCK: Mapping[tuple[str, Literal["matrix", "vector"]], int] = {
    ("fp64", "vector"): 128,
    ("fp32", "vector"): 256,
    ("tf32", "matrix"): 4096,
    ("bf16", "matrix"): 8192,
    ("fp16", "matrix"): 8192,
    ("fp8_e4m3", "matrix"): 16_384,
    ("fp8_e5m2", "matrix"): 16_384,
    ("int8", "matrix"): 16_384,
}
"""Twice Hopper's matrix units a clock. fp64 runs at one rate on both units, so that it stands here once."""


def _blackwell(
    name: str,
    multiprocessors: tuple[int, str],
    published: tuple[float, ...],
    clocks_hz: tuple[float, float],
    source: str,
    hbm: tuple[int, float],
    power_w: float,
    host: tuple[Link, ...],
) -> Target:
    """`published` in the order of `_BLACKWELL_PER_CLOCK`, in 10^12/s; `clocks_hz` of matrix units and of all else."""
    rates = {key: (per, peak) for (key, per), peak in zip(_BLACKWELL_PER_CLOCK.items(), published, strict=True)}
    sheet = DataSheet(
        device_names=(f"NVIDIA {name}",),
        peaks=_peaks(rates, *clocks_hz, source),
        memory=(),
        clock_hz=clocks_hz[1],
        clock_source="no document prints them: the highest SM clock that nvidia-smi reports, which the printed fp32 "
        "and fp64 peaks agree with; the matrix units' lower one is what the printed bf16 peak implies",
        power_w=power_w,
        power_source=source,
        interconnect=Interconnect(
            (_nvlink(5, 18, 50, "NVIDIA Blackwell Architecture Technical Brief, Fifth-Generation NVLink"), *host)
        ),
        sources=(("multiprocessors", multiprocessors[1]), ("limits", f"{_GUIDE}, 10.0")),
    )
    levels = {
        "shared": (228 * _KIB, f"{_GUIDE}, 10.0"),
        "L1": (256 * _KIB, f"{_BLACKWELL_GUIDE}, Unified Shared Memory/L1/Texture Cache"),
        "TMEM": (256 * _KIB, "PTX ISA, Tensor Memory: 128 lanes x 512 columns of 32 bits"),
        "L2": (126 * _MIB, f"{_BLACKWELL_GUIDE}, Increased L2 Capacity"),
        "HBM": (hbm[0] * _GIB, source),
    }
    return _target("sm_100", name, multiprocessors[0], levels, _limits(228), (hbm[1], source), (None, _NO_L2), sheet)


TARGETS: tuple[Target, ...] = (
    _a100(80, 2.039, ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB")),
    _a100(40, 1.555, ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM-40GB")),
    _rtx_4090(),
    _rtx_5090(),
    _hopper("H100-SXM5-80GB", ("NVIDIA H100 80GB HBM3",), (80, 3.352, _H100_TABLE), _H100_TABLE, _H100_TABLE),
    # The H200's sheet rounds its peaks to whole TFLOP/s (989, 67): the die is the H100's, so the finer figures hold.
    _hopper(
        "H200-SXM5-141GB",
        ("NVIDIA H200",),
        (141, 4.8, _H200_SHEET),
        f"{_H100_TABLE}; the same die, and the same figures rounded, in {_H200_SHEET}",
        _H200_SHEET,
    ),
    # The brief of March 2024 announced 40, 80 and 1100; the shipping HGX's data sheet has 37, 75 and 1125, and only
    # these agree with 148 multiprocessors and with one another.
    _blackwell(
        "B200",
        (148, "no document prints it: what devices report (cudaDeviceProp.multiProcessorCount)"),
        (37.0, 75.0, 1125.0, 2250.0, 2250.0, 4500.0, 4500.0, 4500.0),
        (1855e6, 1965e6),
        _HGX_B200,
        (180, 8.0),
        1000,
        (_pcie(5, 64, _HGX_B200),),
    ),
    _blackwell(
        "GB200",
        (152, "no document prints it: what devices report, and what the printed fp32 and fp64 peaks give at 2062 MHz"),
        (40.0, 80.0, 1250.0, 2500.0, 2500.0, 5000.0, 5000.0, 5000.0),
        (2008e6, 2062e6),
        _GB200,
        (186, 8.0),
        1200,
        (Link("NVLink-C2C", 1, 1, 450e9, "host", "NVIDIA GB200 NVL72, data sheet: 900 GB/s in all, of a superchip"),),
    ),
)
"""The first of each architecture stands for it."""
