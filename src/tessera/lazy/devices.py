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
