"""Frozen facts of devices: what kernels are generated for, and what they are measured against.

`detect()` describes this machine's CPU, `detect_gpu(index)` its GPU, `gpu(name)` one from its data sheet,
`arm_cpu(name)` an Arm CPU that need not be there. A CPU's `ceilings` are None until they have been measured and
attached with `Target.with_ceilings`, and so is its `core`; a GPU's are published ones until then, or estimates, as
their `source` says.
"""

from __future__ import annotations

from tessera.target.arm import ARM_CPUS, arm_cpu
from tessera.target.ceilings import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.core import CoreFacts
from tessera.target.cpu import amx_refusal, detect, lacking
from tessera.target.datasheet import DataSheet, Interconnect, Link, MemoryFacts, Peak
from tessera.target.facts import GpuLimits, MemoryLevel, Target
from tessera.target.gpu import GPUS, gpu
from tessera.target.gpu_detect import describe_gpu, detect_gpu

__all__ = [
    "ARM_CPUS",
    "GPUS",
    "Ceilings",
    "ComputeCeiling",
    "CoreFacts",
    "DataSheet",
    "GpuLimits",
    "Interconnect",
    "Link",
    "MemoryCeiling",
    "MemoryFacts",
    "MemoryLevel",
    "Peak",
    "Target",
    "amx_refusal",
    "arm_cpu",
    "describe_gpu",
    "detect",
    "detect_gpu",
    "gpu",
    "lacking",
]
