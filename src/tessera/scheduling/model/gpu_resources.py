"""What one block takes of a multiprocessor, predicted or as the compiler reported it; and how extents are rounded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockResources:
    """`registers` and `spill_bytes` a thread, `shared_bytes` a block; `source` says who says so: "predicted", or the
    compiler's name and version.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    source: str = "predicted"


def ceil_div(a: int, b: int) -> int:
    """How many pieces of `b` cover `a`, at least one."""
    return max((a + b - 1) // b, 1)


def size_step(extent: int) -> int:
    """The largest extent of the size class of `extent`: four classes to a power of two."""
    if extent <= 4:
        return extent
    step = 1 << ((extent - 1).bit_length() - 3)
    return -(-extent // step) * step
