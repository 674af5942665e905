"""What the lowering of a matrix product hands around: operands, places in memory, the current block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.language.expression import Value

A_PADDING = 16
"""Elements added to a packed row of A, so that rows do not fall into the same cache set."""
SUMS_PADDING = 16
"""The same for a row of sums in scratch memory."""
REGISTER_BLOCK = 256
"""Steps of K after which sums in registers are added to the sum of the blocks before."""
VECTOR_BYTES = 64
"""What one step of packing A copies, of elements that are multiplied several at a time."""
TRANSPOSED_ROWS = 16
"""Rows of a tile that is transposed in registers while packing."""


@dataclass(frozen=True)
class Operand:
    """One operand as the micro-kernel sees it: staged, or read in place."""

    value: Value
    element: DType
    staged: SSAValue | None
    panel: int


@dataclass(frozen=True)
class Place:
    """Where a register tile lies in memory."""

    buffer: SSAValue
    indices: tuple[SSAValue, ...]
    dims: tuple[int, int]
    in_bounds: tuple[bool, bool]


@dataclass(frozen=True)
class Corner:
    """Where the current block begins, and its extents."""

    ic: SSAValue
    height: SSAValue
    jc: SSAValue
    width: SSAValue
    pc: SSAValue
    depth: SSAValue


def contiguous(shape: Sequence[int]) -> list[int | None]:
    """Row-major strides of a static shape."""
    strides: list[int | None] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return strides[::-1]


def m_tails(rows: int) -> tuple[int, ...]:
    """Heights of the smaller register tiles that finish a block whose height `rows` does not divide, largest first."""
    return tuple(height for height in (8, 4, 1) if height <= rows * 3 // 4)[:2]
