"""The kernels of the measuring tests: right, wrong, crashing and hanging ones, as ``tune-faults`` has them."""

from bench.probes.fault_kernels import (
    at_call,
    case,
    crashing,
    crashing_at_call,
    descriptors,
    doubling,
    hanging,
    noisy,
    scale,
    writing,
)

__all__ = [
    "at_call",
    "case",
    "crashing",
    "crashing_at_call",
    "descriptors",
    "doubling",
    "hanging",
    "noisy",
    "overrunning",
    "scale",
    "writing",
]


def overrunning() -> bytes:
    """Right, but it also writes the element behind the output."""
    return writing(0)
