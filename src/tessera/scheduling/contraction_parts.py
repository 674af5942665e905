"""What the lowering of a matrix product hands around: operands, places in memory, the current block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.expression import Value


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
