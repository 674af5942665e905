"""GPUs from their data sheets: dense peaks (no structured sparsity) and nominal bandwidths, for planning offline.

Sources: "NVIDIA A100 80GB Tensor Core GPU" data sheet; "NVIDIA H100 Tensor Core GPU Architecture" white paper; "NVIDIA
H200 Tensor Core GPU" data sheet; "NVIDIA Blackwell Architecture Technical Brief" (HGX B200); "AMD Instinct MI300X
Accelerator" data sheet and "AMD CDNA 3 Architecture" white paper; occupancy limits from "CUDA C++ Programming Guide",
table of technical specifications per compute capability, and "AMD Instinct MI300 Instruction Set Architecture";
B200's L2 from "NVIDIA Blackwell Tuning Guide".
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.errors import UnsupportedTargetError
from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.facts import GpuLimits, MemoryLevel, Target

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_TERA = 1e12


def _nvidia_limits(shared_kib: int) -> GpuLimits:
    # One KiB of shared memory per block is taken by the system from compute capability 8.0 on.
    return GpuLimits(32, 64, 65_536, 255, shared_kib * _KIB, (shared_kib - 1) * _KIB)


def _gpu(
    arch: str,
    name: str,
    source: str,
    multiprocessors: int,
    limits: GpuLimits,
    tflop_per_s: Mapping[str, float],
    l2_bytes: int,
    hbm_bytes: int,
    hbm_tbyte_per_s: float,
) -> Target:
    compute = (ComputeCeiling(dtype, multiprocessors, peak * _TERA) for dtype, peak in tflop_per_s.items())
    line = 128
    return Target(
        kind="gpu",
        arch=arch,
        name=name,
        features=frozenset(),
        vector_bits=128,  # the widest load of one thread
        vector_registers=0,
        cores=multiprocessors,
        processors=multiprocessors,
        memory=(
            MemoryLevel("shared", limits.shared_bytes, line, 1),
            MemoryLevel("L2", l2_bytes, line, multiprocessors),
            MemoryLevel("HBM", hbm_bytes, line, multiprocessors),
        ),
        gpu=limits,
        ceilings=Ceilings(
            arch, name, source, tuple(compute), (MemoryCeiling("HBM", multiprocessors, hbm_tbyte_per_s * _TERA),)
        ),
    )


_HOPPER_TFLOP_PER_S = {
    "fp64": 66.9,
    "fp32": 66.9,
    "tf32": 494.7,
    "bf16": 989.4,
    "fp16": 989.4,
    "fp8_e4m3": 1978.9,
    "fp8_e5m2": 1978.9,
}

GPUS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _gpu(
            "sm_80",
            "A100-SXM4-80GB",
            "NVIDIA A100 80GB Tensor Core GPU data sheet",
            108,
            _nvidia_limits(164),
            {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
            40 * _MIB,
            80 * _GIB,
            2.039,
        ),
        _gpu(
            "sm_90",
            "H100-SXM5-80GB",
            "NVIDIA H100 Tensor Core GPU Architecture white paper",
            132,
            _nvidia_limits(228),
            _HOPPER_TFLOP_PER_S,
            50 * _MIB,
            80 * _GIB,
            3.352,
        ),
        _gpu(
            "sm_90",
            "H200-SXM5-141GB",
            "NVIDIA H200 Tensor Core GPU data sheet",
            132,
            _nvidia_limits(228),
            _HOPPER_TFLOP_PER_S,
            50 * _MIB,
            141 * 10**9,
            4.8,
        ),
        _gpu(
            "sm_100",
            "B200",
            "NVIDIA Blackwell Architecture Technical Brief, HGX B200",
            148,
            _nvidia_limits(228),
            {
                "fp64": 40.0,
                "fp32": 80.0,
                "tf32": 1100.0,
                "bf16": 2250.0,
                "fp16": 2250.0,
                "fp8_e4m3": 4500.0,
                "fp8_e5m2": 4500.0,
            },
            126 * _MIB,
            180 * 10**9,
            8.0,
        ),
        _gpu(
            "gfx942",
            "MI300X",
            "AMD Instinct MI300X Accelerator data sheet",
            304,
            GpuLimits(64, 32, 131_072, 512, 64 * _KIB, 64 * _KIB),
            {
                "fp64": 163.4,
                "fp32": 163.4,
                "tf32": 653.7,
                "bf16": 1307.4,
                "fp16": 1307.4,
                "fp8_e4m3": 2614.9,
                "fp8_e5m2": 2614.9,
            },
            4 * _MIB,
            192 * 10**9,
            5.3,
        ),
    )
}
"""Every known GPU by name."""


def gpu(name: str) -> Target:
    """A GPU by its name ("H200-SXM5-141GB"), the start of it ("H200") or its architecture ("sm_90", "sm90": the first
    of that architecture).

    Raises UnsupportedTargetError for an unknown one.
    """
    wanted = name.lower().replace("_", "")
    for target in GPUS.values():
        if target.name.lower().startswith(wanted) or target.arch.replace("_", "") == wanted:
            return target
    raise UnsupportedTargetError(f"{name!r} is no known GPU", hints=[f"known are {', '.join(GPUS)}"])
