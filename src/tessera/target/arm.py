"""Arm CPUs by name, for code that is generated on another machine. `target.detect()` describes the one at hand."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tessera.errors import UnsupportedTargetError
from tessera.target.facts import MemoryLevel, Target, vector_facts

_KIB = 1 << 10


def _target(arch: str, name: str, features: str, l1_bytes: int, l2_bytes: int, l3_bytes: int) -> Target:
    """One core of a CPU: what its manual says, with the caches as they are most often built."""
    present = frozenset(features.split())
    bits, registers = vector_facts(present)
    levels = (("L1", l1_bytes), ("L2", l2_bytes), ("L3", l3_bytes), ("DRAM", 0))
    return Target(
        kind="cpu",
        arch=arch,
        name=name,
        features=present,
        vector_bits=bits,
        vector_registers=registers,
        cores=1,
        processors=1,
        memory=tuple(MemoryLevel(level, size, 64, 1) for level, size in levels if size or level == "DRAM"),
        machine="aarch64",
    )


ARM_CPUS: Mapping[str, Target] = MappingProxyType(
    {
        target.arch: target
        for target in (
            # Arm, "Cortex-A72 MPCore Processor Technical Reference Manual", 1.3 and 6: ARMv8.0, no half precision.
            _target("cortex-a72", "Arm Cortex-A72", "neon crc", 32 * _KIB, 1024 * _KIB, 0),
            # Arm, "Neoverse N1 Core Technical Reference Manual", 1.2 and A6: ARMv8.2 with half precision and SDOT.
            _target(
                "neoverse-n1",
                "Arm Neoverse N1",
                "neon crc fullfp16 dotprod lse rdm",
                64 * _KIB,
                1024 * _KIB,
                2048 * _KIB,
            ),
        )
    }
)
"""Arm CPUs by LLVM's name of them."""


def arm_cpu(name: str) -> Target:
    """An Arm CPU by LLVM's name of it ("neoverse-n1"); code for it is emitted and assembled on any machine.

    Raises UnsupportedTargetError for an unknown one.
    """
    wanted = name.lower().replace("_", "-")
    if wanted not in ARM_CPUS:
        raise UnsupportedTargetError(f"{name!r} is no known CPU", hints=[f"known are {', '.join(ARM_CPUS)}"])
    return ARM_CPUS[wanted]
