"""Names of devices, as structures hold them: "cpu", "cuda:0", "interpreter", and meshes: "mesh(tp=2, dp=4)"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import torch

from tessera.errors import DeviceError
from tessera.lazy.layouts import MeshShape

CPU: Final = "cpu"
INTERPRETER: Final = "interpreter"
"""CPU memory on which the kernels of a GPU are interpreted, to check them without one."""

_MESH: Final = "mesh"

_NAME = re.compile(r"(cpu|cuda|interpreter)(?::(\d+))?")


def device_named(device: object) -> str:
    """The name under which a device is known: "cuda" is torch's current CUDA device, "cpu:0" is "cpu".

    Raises DeviceError (E_DEVICE) for what is no device that kernels run on.
    """
    match = _NAME.fullmatch(str(device))
    if match is None or (match[1] != "cuda" and match[2] not in (None, "0")):
        raise DeviceError(
            f"device {device}: kernels do not run there", hints=['"cpu", "cuda", "cuda:1", ..., or "interpreter"']
        )
    if match[1] != "cuda":
        return match[1]
    if match[2] is not None:
        return f"cuda:{int(match[2])}"
    return f"cuda:{torch.cuda.current_device() if torch.cuda.is_available() else 0}"


def mesh_device(shape: MeshShape) -> str:
    """The device of tensors that are shared out over a mesh: only those on meshes of one shape meet in an operator."""
    return f"{_MESH}({shape})"


def is_mesh(device: str | None) -> bool:
    """Whether a device is a mesh of several."""
    return device is not None and device.startswith(_MESH)


def how_to_join(devices: Iterable[str]) -> str:
    """What makes operands on these devices operands of one operator."""
    if any(map(is_mesh, devices)):
        return "put each on the mesh: dist.distribute(tensor, layout, mesh)"
    return f'move one of them: tensor.to("{next(iter(devices))}")'


def is_cpu_memory(device: str) -> bool:
    """Whether the elements of a tensor on a device lie in memory that the CPU reads."""
    return device in (CPU, INTERPRETER)


@lru_cache(maxsize=64)
def torch_device(device: str) -> torch.device:
    """Where torch finds the memory of a device."""
    return torch.device(CPU if is_cpu_memory(device) or is_mesh(device) else device)


def check_device(device: object) -> str:
    """The name of a device that kernels run on. Raises DeviceError (E_DEVICE) for any other, and where there is no such
    device here.
    """
    name = device_named(device)
    if not is_cpu_memory(name):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if torch_device(name).index >= count:
            raise DeviceError(
                f"device {name}: {_why_no_gpu() if not count else f'there are {count} GPUs'}",
                hints=['device="interpreter" checks GPU kernels without one', "nvidia-smi lists a machine's GPUs"],
            )
    return name


def _why_no_gpu() -> str:
    if not torch.version.cuda:
        return "torch was built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # no driver, one too old for this torch, no device
        return f"torch sees no GPU: {str(error).splitlines()[0]}"
    return "torch sees no GPU"
