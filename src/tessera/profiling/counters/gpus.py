"""Whose GPUs this machine has, as the system shows them: no library is loaded for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tessera.profiling.counters.files import text
from tessera.profiling.counters.interfaces import Capability

Vendor: TypeAlias = Literal["NVIDIA", "AMD", "Intel"]

_PCI: Final[Mapping[Vendor, str]] = {"NVIDIA": "0x10de", "AMD": "0x1002", "Intel": "0x8086"}
_NODES: Final[Mapping[Vendor, str]] = {"NVIDIA": "nvidia[0-9]*", "AMD": "kfd", "Intel": "dri/renderD*"}
_CLASSES: Final = ("0x03", "0x12")
"""Of PCI devices: display controllers and accelerators."""


def present(vendor: Vendor, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> bool:
    """Whether a GPU of this vendor is here: on the PCI bus, or, where a container hides that, as a device file."""
    devices = [
        each for each in (sys / "bus/pci/devices").glob("*") if (text(each / "class") or "").startswith(_CLASSES)
    ]
    if any(text(device / "vendor") == _PCI[vendor] for device in devices):
        return True
    return any(dev.glob("dxg")) or (not devices and any(dev.glob(_NODES[vendor])))


def refused(units: Mapping[str, str], vendor: Vendor, reason: str, remedy: str) -> dict[str, Capability]:
    """Capabilities of fields whose library refuses; without a GPU of the vendor that is all there is to say."""
    if not present(vendor):
        return {name: Capability(unit, f"no {vendor} GPU is here", absent=True) for name, unit in units.items()}
    return {name: Capability(unit, reason, remedy) for name, unit in units.items()}
