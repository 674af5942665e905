"""All backends: the folders beside this file, each of which exports one constant, `BACKEND`, and gives it its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tessera import backend
from tessera.backend.contract import Backend, CpuBackend, GpuBackend
from tessera.errors import DeviceError
from tessera.system.sources import members

_CPU = "cpu"
_GPU = "cuda"

_DEFAULT: Final = {_GPU: "triton"}
"""Kind of device that several backends make kernels for -> the one that does where none is named."""

_found: dict[tuple[str, str], Backend[Any]] = {}


def backends() -> Iterator[Backend[Any]]:
    """Every backend, by the names of their folders."""
    return (found for _, found in _named())


def backend_names(device: str) -> list[str]:
    """The names of the backends of a device, the one that is taken by default first."""
    kind = device.partition(":")[0]
    names = [name for name, found in _named() if found.device == kind]
    return sorted(names, key=lambda name: name != _DEFAULT.get(kind, name))


def _named() -> Iterator[tuple[str, Backend[Any]]]:
    for folder in members(backend, folders=True):
        known: Backend[Any] = folder.BACKEND
        yield folder.__name__.rpartition(".")[2], known


def backend_of(device: str, name: str = "") -> Any:
    """The backend whose kernels a device runs, by the device's name ("cpu", "cuda:0") or kind; of several the default
    one, or the one of a `name`. Raises DeviceError.
    """
    kind = device.partition(":")[0]
    if (kind, name) not in _found:
        known = {folder: found for folder, found in _named() if found.device == kind}
        if not known:
            kinds = dict.fromkeys(each.device for each in backends())
            raise DeviceError(
                f"no backend makes kernels for {device}", hints=[f"there are those of {', '.join(kinds)}"]
            )
        taken = name or _DEFAULT.get(kind, next(iter(known)))
        if taken not in known:
            raise DeviceError(f"{device} has no backend {taken!r}", hints=[f"it has {', '.join(backend_names(kind))}"])
        _found[kind, name] = known[taken]
    return _found[kind, name]


def cpu_backend() -> CpuBackend:
    """The backend of this machine's CPU."""
    found: CpuBackend = backend_of(_CPU)
    return found


def gpu_backend(device: str = _GPU, name: str = "") -> GpuBackend:
    """A backend of a GPU, or of what stands for one ("interpreter"). Raises DeviceError for other devices and names."""
    found: GpuBackend = backend_of(device, name)
    return found
