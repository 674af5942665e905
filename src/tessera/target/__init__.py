"""Frozen facts of devices: what kernels are generated for, and what they are measured against.

`detect()` describes this machine's CPU; `gpu(name)` a GPU from its data sheet. Peaks are never guessed: a CPU's
`ceilings` are None until they have been measured and attached with `Target.with_ceilings`.
"""

from __future__ import annotations

from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.cpu import detect
from tessera.target.facts import GpuLimits, MemoryLevel, Target
from tessera.target.gpu import GPUS, gpu

__all__ = [
    "GPUS",
    "Ceilings",
    "ComputeCeiling",
    "GpuLimits",
    "MemoryCeiling",
    "MemoryLevel",
    "Target",
    "detect",
    "gpu",
]
