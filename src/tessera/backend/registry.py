"""All backends: the folders beside this file, each of which exports one constant, `BACKEND`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera import backend
from tessera.backend.contract import Backend, CpuBackend, GpuBackend
from tessera.errors import DeviceError
from tessera.system.sources import members

_CPU = "cpu"
_GPU = "cuda"

_found: dict[str, Backend[Any]] = {}


def backends() -> Iterator[Backend[Any]]:
    """Every backend, by the names of their folders."""
    for folder in members(backend, folders=True):
        known: Backend[Any] = folder.BACKEND
        yield known


def backend_of(device: str) -> Any:
    """The backend whose kernels a device runs, by the device's name ("cpu", "cuda:0") or kind. Raises DeviceError."""
    kind = device.partition(":")[0]
    if kind not in _found:
        known = {each.device: each for each in backends()}
        if kind not in known:
            raise DeviceError(
                f"no backend makes kernels for {device}", hints=[f"there are those of {', '.join(known)}"]
            )
        _found[kind] = known[kind]
    return _found[kind]


def cpu_backend() -> CpuBackend:
    """The backend of this machine's CPU."""
    found: CpuBackend = backend_of(_CPU)
    return found


def gpu_backend(device: str = _GPU) -> GpuBackend:
    """The backend of a GPU, or of what stands for one ("interpreter"). Raises DeviceError for other devices."""
    found: GpuBackend = backend_of(device)
    return found
