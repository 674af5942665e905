"""Names of devices, as structures hold them: "cpu", "cuda:0", "interpreter"."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import torch

from tessera.errors import DeviceError

CPU: Final = "cpu"
INTERPRETER: Final = "interpreter"
"""CPU memory on which the kernels of a GPU are interpreted, to check them without one."""

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


def is_cpu_memory(device: str) -> bool:
    """Whether the elements of a tensor on a device lie in memory that the CPU reads."""
    return device in (CPU, INTERPRETER)


@lru_cache(maxsize=64)
def torch_device(device: str) -> torch.device:
    """Where torch finds the memory of a device."""
    return torch.device(CPU if is_cpu_memory(device) else device)
