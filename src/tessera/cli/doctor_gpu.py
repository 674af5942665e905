"""What `tessera doctor` finds of GPUs: device, driver, what torch and Triton are built for, facts and ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import torch

from tessera.backend.registry import gpu_backend
from tessera.errors import UnsupportedTargetError
from tessera.system.distribution import installing
from tessera.target import Target, detect_gpu
from tessera.target.stored_ceilings import driver_version, stored_ceilings

State = Literal["ok", "absent", "broken"]

_OLDEST_TILE_DRIVER: Final = 580
"""The first driver that launches kernels of CUDA Tile ("CUDA 13.1 Release Notes")."""


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report. `remedy` says what to do, and stands on every line that is not "ok".

    "absent" is something that Tessera works without; "broken" something it does not.
    """

    subject: str
    state: State
    found: str
    remedy: str = ""


def gpus() -> Iterator[Diagnosis]:
    """Every GPU that torch can use with its facts, or the first reason why there is none."""
    if not torch.cuda.is_available():
        yield _why_none()
        return
    yield _toolchain()
    if torch.version.cuda is not None:
        yield cuda_tile(driver_version())
    for index in range(torch.cuda.device_count()):
        yield from _device(index)


def _why_none() -> Diagnosis:
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return Diagnosis(
            "GPU", "absent", "no device: neither /dev/nvidia* nor /dev/kfd", "none needed: kernels run on the CPU"
        )
    if torch.version.cuda is None and torch.version.hip is None:
        return Diagnosis(
            "GPU", "absent", f"torch {torch.__version__} was built for CPUs only", "install torch with CUDA or ROCm"
        )
    return Diagnosis(
        "GPU", "absent", "torch finds no usable device", "compare the driver's version with torch.version.cuda"
    )


def _toolchain() -> Diagnosis:
    """Driver, torch's CUDA or ROCm, and Triton, without which nothing is compiled."""
    platform = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    found = f"driver {driver_version() or 'of unknown version'}, torch with {platform}"
    try:
        return Diagnosis("GPU software", "ok", f"{found}, Triton {metadata.version('triton')}")
    except metadata.PackageNotFoundError:
        return Diagnosis(
            "GPU software", "absent", f"{found}; Triton is not installed, which compiles kernels", installing("triton")
        )


def cuda_tile(driver: str) -> Diagnosis:
    """Whether kernels of the backend "cuda_tile" are compiled here, and launched by a driver of this version."""
    try:
        found = gpu_backend(name="cuda_tile").version()
    except UnsupportedTargetError as error:
        return Diagnosis("CUDA Tile", "absent", error.message, error.hints[0])
    if driver and int(driver.partition(".")[0]) < _OLDEST_TILE_DRIVER:
        return Diagnosis(
            "CUDA Tile",
            "absent",
            f"{found}; driver {driver} launches none of its kernels",
            f"a driver r{_OLDEST_TILE_DRIVER} or newer",
        )
    return Diagnosis("CUDA Tile", "ok", f"{found}, for the backend 'cuda_tile'")


def _device(index: int) -> Iterator[Diagnosis]:
    subject, properties = f"cuda:{index}", torch.cuda.get_device_properties(index)
    size = f"{properties.total_memory / 2**30:.4g} GiB, {properties.multi_processor_count} multiprocessors"
    try:
        target = detect_gpu(index)
    except UnsupportedTargetError as error:
        yield Diagnosis(subject, "absent", str(error.args[0]), "none needed: kernels run on the CPU")
        return
    known = f"known as {target.name}" if target.datasheet is not None else "not among the GPUs of published facts"
    yield Diagnosis(subject, "ok", f"{properties.name}, {target.arch}, {size}; {known}")
    yield _ceilings(subject, target)


def _ceilings(subject: str, target: Target) -> Diagnosis:
    """Measured peaks, or where those come from that stand in for them."""
    found = stored_ceilings(target)
    if found is None:
        source = target.ceilings.source if target.ceilings is not None else "none"
        remedy = "`tessera doctor --measure` measures them, once per driver and torch"
        return Diagnosis(f"{subject} ceilings", "absent", f"not measured; instead: {source}", remedy)
    peak, copy = found.flop_per_s("bf16", target.cores), found.byte_per_s("HBM", target.cores, "copy")
    parts = [f"{peak / 1e12:.4g} TFLOP/s in bf16" if peak else "", f"copies {copy / 1e12:.4g} TB/s" if copy else ""]
    return Diagnosis(f"{subject} ceilings", "ok", ", ".join([f"measured {found.date}", *filter(None, parts)]))
