"""GPUs by name: published facts (`nvidia.py`, `amd.py`), for planning without the device."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.errors import UnsupportedTargetError
from tessera.target import amd, nvidia
from tessera.target.facts import Target

GPUS: Mapping[str, Target] = {target.name: target for target in (*nvidia.TARGETS, *amd.TARGETS)}
"""Every known GPU by name."""
_ARCHITECTURES = tuple(dict.fromkeys(target.arch for target in GPUS.values()))


def gpu(name: str) -> Target:
    """A GPU by its name ("H200-SXM5-141GB"), the start of it ("H200") or its architecture ("sm_90", "sm90": the first
    of that architecture).

    Raises UnsupportedTargetError for an unknown one.
    """
    wanted = name.lower().replace("_", "")
    for target in GPUS.values():
        if target.name.lower().startswith(wanted) or target.arch.replace("_", "") == wanted:
            return target
    hints = [f"known are {', '.join(GPUS)}", f"or by architecture: {', '.join(_ARCHITECTURES)}"]
    raise UnsupportedTargetError(f"{name!r} is no known GPU", hints=hints)
