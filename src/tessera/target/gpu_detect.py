"""The GPU that is there: torch's properties of a device as a `Target`.

A device that the data sheets know gets their facts, with the memory that it really has. Of any other the limits are
what it reports, and its ceilings estimates, scaled from the known GPU of its architecture; their source says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from tessera.errors import UnsupportedTargetError
from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.facts import GpuLimits, MemoryLevel, Target
from tessera.target.gpu import GPUS

_OLDEST = (8, 0)
_AMD = ("gfx942", "gfx950")
_MAX_BLOCKS: Mapping[tuple[int, int], int] = {(8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
"""Blocks of a multiprocessor where they are not 32 ("CUDA C++ Programming Guide", technical specifications)."""
_SYSTEM_BYTES = 1024
_LINE = 128


class DeviceProperties(Protocol):
    """What `torch.cuda.get_device_properties` gives, as far as it is read here. Sizes are bytes, clocks kHz."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    warp_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    gcnArchName: str  # noqa: N815 - torch's name


def detect_gpu(index: int = 0) -> Target:
    """The target of torch's CUDA (or ROCm) device number `index`, with published or estimated ceilings.

    Raises UnsupportedTargetError where torch sees no such device, and as `describe_gpu` does.
    """
    import torch

    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise UnsupportedTargetError(
            f"there is no GPU number {index}: torch {torch.__version__} sees {count or 'none'}",
            hints=["`tessera doctor` says why"],
        )
    return describe_gpu(torch.cuda.get_device_properties(index))


def describe_gpu(properties: DeviceProperties) -> Target:
    """The target of a device with these properties; no device is asked.

    Raises UnsupportedTargetError for GPUs that no kernels are generated for: NVIDIA's older than compute capability
    8.0, AMD's other than gfx942 and gfx950.
    """
    arch = _arch(properties)
    known = _known(properties, arch)
    if known is not None:
        memory = tuple(
            replace(level, size_bytes=properties.total_memory) if level.name == "HBM" else level
            for level in known.memory
        )
        return replace(known, memory=memory)
    cores = properties.multi_processor_count
    limits = _limits(properties)
    target = Target(
        kind="gpu",
        arch=arch,
        name=properties.name,
        features=frozenset(),
        vector_bits=128,
        vector_registers=0,
        cores=cores,
        processors=cores,
        memory=(
            MemoryLevel("shared", limits.shared_bytes, _LINE, 1),
            MemoryLevel("L2", properties.L2_cache_size, _LINE, cores),
            MemoryLevel("HBM", properties.total_memory, _LINE, cores),
        ),
        gpu=limits,
    )
    return target.with_ceilings(_estimated(properties, target))


def _arch(properties: DeviceProperties) -> str:
    """LLVM's name of the device's architecture."""
    amd = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    if amd.startswith("gfx"):
        if amd not in _AMD:
            raise UnsupportedTargetError(
                f"{properties.name} ({amd}): of AMD's GPUs only gfx942 (MI300 series) and gfx950 (MI350) are supported"
            )
        return amd
    capability = (properties.major, properties.minor)
    if capability < _OLDEST:
        raise UnsupportedTargetError(
            f"{properties.name} has compute capability {properties.major}.{properties.minor}, and kernels need 8.0",
            hints=["8.0 (A100) brought bf16 and asynchronous copies, which kernels are made of", "use the CPU instead"],
        )
    return f"sm_{properties.major}{properties.minor}"


def _known(properties: DeviceProperties, arch: str) -> Target | None:
    """The GPU of the data sheets that this is. A part of one (MIG) has fewer multiprocessors, and is another device."""
    for target in GPUS.values():
        if target.datasheet is None or (target.arch, target.cores) != (arch, properties.multi_processor_count):
            continue
        if properties.name.startswith(target.datasheet.device_names):
            return target
    return None


def _limits(properties: DeviceProperties) -> GpuLimits:
    shared = properties.shared_memory_per_multiprocessor
    if properties.warp_size == 64:
        return GpuLimits(64, properties.max_threads_per_multi_processor // 64, 131_072, 512, shared, shared)
    return GpuLimits(
        warp_size=properties.warp_size,
        max_warps=properties.max_threads_per_multi_processor // properties.warp_size,
        registers=65_536,
        max_registers_per_thread=255,
        shared_bytes=shared,
        max_shared_bytes_per_block=shared - _SYSTEM_BYTES,
        max_blocks=_MAX_BLOCKS.get((properties.major, properties.minor), 32),
    )


def _estimated(properties: DeviceProperties, target: Target) -> Ceilings:
    """The ceilings of the known GPU whose architecture is nearest, scaled by multiprocessors and clock; memory by its
    bus, or by the multiprocessors where the device hides its clocks.
    """
    model = _nearest(target.arch)
    assert model.datasheet is not None and model.ceilings is not None
    clock_hz, bus_byte_per_s = _clocks(properties)
    clock_hz = clock_hz or model.datasheet.clock_hz
    scale = target.cores * clock_hz / (model.cores * model.datasheet.clock_hz)
    compute = (ComputeCeiling(row.dtype, target.cores, row.flop_per_s * scale) for row in model.ceilings.compute)
    source = f"estimate: {model.name} scaled to {target.cores} multiprocessors at {clock_hz / 1e6:.0f} MHz"
    if bus_byte_per_s:
        source += f", and {properties.memory_bus_width} bits of memory at {properties.memory_clock_rate / 1e3:.0f} MHz"
    like = (model.byte_per_s("HBM") or 0.0) * target.cores / model.cores
    memory = (MemoryCeiling("HBM", target.cores, bus_byte_per_s or like),)
    return Ceilings(target.arch, target.name, source, tuple(compute), memory)


def _nearest(arch: str) -> Target:
    """The first known GPU of an architecture, else of the latest one before it."""
    rank = int(arch.removeprefix("sm_")) if arch.startswith("sm_") else 0
    same = [known for known in GPUS.values() if known.arch == arch]
    older = [known for known in GPUS.values() if known.arch.startswith("sm_") and int(known.arch[3:]) <= rank]
    return same[0] if same else max(older, key=lambda known: int(known.arch[3:]))


def _clocks(properties: DeviceProperties) -> tuple[float, float]:
    """(clock in Hz, bandwidth of the memory bus in byte/s); 0 for what the device does not tell."""
    clock = getattr(properties, "clock_rate", 0) * 1e3
    # Two transfers a clock on each wire.
    return clock, 2e3 * getattr(properties, "memory_clock_rate", 0) * getattr(properties, "memory_bus_width", 0) / 8
