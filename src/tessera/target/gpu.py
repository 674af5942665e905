"""GPUs by name: published facts (`nvidia.py`, `amd.py`), for planning without the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tessera.errors import UnsupportedTargetError
from tessera.target import amd, nvidia
from tessera.target.facts import Target

GPUS: Mapping[str, Target] = {target.name: target for target in (*nvidia.TARGETS, *amd.TARGETS)}
"""Every known GPU by name."""
_VENDORS: Final = ("nvidia ", "geforce ", "amd ", "instinct ")
_ARCHITECTURES = tuple(dict.fromkeys(target.arch for target in GPUS.values()))


def gpu(name: str) -> Target:
    """A GPU by its name ("H200-SXM5-141GB"), the start of it ("H200", "NVIDIA H200") or its architecture ("sm_90",
    "sm90", "sm90a": the first of that architecture).

    Raises UnsupportedTargetError for an unknown one.
    """
    wanted = " ".join(name.lower().split())
    for vendor in _VENDORS:
        wanted = wanted.removeprefix(vendor)
    wanted = wanted.replace(" ", "-")
    # sm_90a is what nvcc calls all of sm_90, with what no later architecture has; kernels are compiled for that anyway.
    arch = re.sub(r"^(sm\d+)[af]$", r"\1", wanted.replace("_", ""))
    for target in GPUS.values():
        if (wanted and target.name.lower().startswith(wanted)) or target.arch.replace("_", "") == arch:
            return target
    hints = [f"known are {', '.join(GPUS)}", f"or by architecture: {', '.join(_ARCHITECTURES)}"]
    raise UnsupportedTargetError(f"{name!r} is no known GPU", hints=hints)
