"""What was measured of devices, on disk: a file of ceilings for each CPU or GPU under `ceilings/` in the cache, and one
of a CPU's core beside it.
"""

from __future__ import annotations

import glob
import hashlib
import re
from pathlib import Path

from tessera import settings
from tessera.errors import CacheFormatError
from tessera.system.files import read_regular, write_atomically
from tessera.target.ceilings import Ceilings, read_ceilings
from tessera.target.core import CoreFacts
from tessera.target.cpu import detect
from tessera.target.facts import Target

_CORE_BYTES = 1 << 16


def stored_ceilings(described: Target | None = None) -> Ceilings | None:
    """The ceilings of a device (None: this machine's CPU) that were measured before, of a GPU with this driver and
    torch; None where there are none that can be read.
    """
    return read_ceilings(_path(described or detect()))


def any_stored(arch: str) -> bool:
    """Whether ceilings of some device of this architecture were measured, for which LLVM is not asked."""
    return any(settings.current().ceilings_dir.glob(f"{glob.escape(arch)}-*.json"))


def store_ceilings(described: Target, ceilings: Ceilings) -> None:
    """Keeps what was measured of a device. Raises OSError where the folder cannot be written."""
    write_atomically(_path(described), ceilings.to_json().encode())


def stored_core(described: Target) -> CoreFacts | None:
    """What was measured of the cores of a CPU before; None where nothing was that can be read."""
    try:
        return CoreFacts.from_json(read_regular(_core_path(described), _CORE_BYTES))
    except (OSError, CacheFormatError):
        return None


def store_core(described: Target, core: CoreFacts) -> None:
    """Keeps what was measured of a CPU's cores. Raises OSError where the folder cannot be written."""
    write_atomically(_core_path(described), core.to_json().encode())


def with_stored(described: Target) -> Target:
    """A device with the ceilings that were measured on it, as it is where none were."""
    found = stored_ceilings(described)
    return described if found is None else described.with_ceilings(found)


def driver_version(system: Path = Path("/")) -> str:
    """The version of the GPU's kernel driver, "" where the system does not say."""
    places = (("proc/driver/nvidia/version", r"Module\s+(\d[\d.]+)"), ("sys/module/amdgpu/version", r"(\S+)"))
    for path, pattern in places:
        try:
            found = re.search(pattern, (system / path).read_text())
        except OSError:
            continue
        if found is not None:
            return found[1]
    return ""


def _core_path(described: Target) -> Path:
    path = _path(described)
    return path.with_name(f"{path.stem}-core.json")


def _path(described: Target) -> Path:
    device: tuple[object, ...] = (described.arch, described.name, described.cores)
    if described.kind == "gpu":
        import torch

        device += (driver_version(), torch.__version__)
    else:
        device += (described.processors, sorted(described.features))
    digest = hashlib.sha256(repr(device).encode()).hexdigest()[:16]
    return settings.current().ceilings_dir / f"{described.arch}-{digest}.json"
