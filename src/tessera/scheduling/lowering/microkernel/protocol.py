"""Micro-kernels: what multiplies and adds up one register tile of a matrix product.

    sums[rows, columns] += left[rows, depth] @ right[depth, columns]

    vector.py        columns along the lanes of vectors; of the left operand one element after the other is broadcast
    dot_product.py   the summed axis along the lanes, which are added up in the end
    matrix_unit.py   a CPU's matrix unit, by tiles of 16 rows and columns

A kernel's loops (`lowering/loop_nest.py`) say where a register tile is, and give what reads its operands: from memory
of users, or from what was packed (`panels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, VectorType
from xdsl.ir import SSAValue

from tessera.scheduling.lowering.builder import TileBuilder

Sums: TypeAlias = Sequence[SSAValue]
"""The sums of a register tile, in as many tiles as its micro-kernel wants."""
Read: TypeAlias = Callable[[int], SSAValue]
"""Reads the part of an operand for the rows, or columns, from one of the register tile on."""
Step: TypeAlias = Callable[[SSAValue, Sums, bool], Sums]
"""(position along the summed axis, sums, whether all of the step lies inside) -> the sums after the step."""


class MicroKernel(Protocol):
    """How one register tile is summed up."""

    @property
    def depth(self) -> int:
        """The elements of the summed axis that a step takes."""

    def zeros(self) -> list[SSAValue]:
        """The sums before the first step."""

    def step(self, left: Read, right: Read, sums: Sums) -> list[SSAValue]:
        """The sums after a step. An operand's part is read when it is first multiplied, and once."""

    def finish(self, sums: Sums) -> Iterator[SSAValue]:
        """The tiles of results, one after the other, when the last step has been made."""


@dataclass(frozen=True)
class Place:
    """Where a tile lies in memory: the indices of its first element, the dimension of the memory that each of its own
    walks, and whether it lies inside along it.
    """

    buffer: SSAValue
    indices: tuple[SSAValue, ...]
    dims: tuple[int, ...]
    in_bounds: tuple[bool, ...]

    def load(self, builder: TileBuilder, shape: Sequence[int]) -> SSAValue:
        """The tile of a shape."""
        return builder.load(self.buffer, self.indices, self.dims, shape, self.in_bounds)

    def store(self, builder: TileBuilder, value: SSAValue) -> None:
        """Writes a tile."""
        builder.store(value, self.buffer, self.indices, self.dims, self.in_bounds)

    def fetch(self, builder: TileBuilder, rows: int, columns: int) -> None:
        """Fetches a tile that will be written."""
        builder.prefetch(self.buffer, self.indices, rows, columns, write=True)

    def moved(self, builder: TileBuilder, *offsets: int) -> Place:
        """The tile some elements further along each of its dimensions."""
        indices = list(self.indices)
        for dim, offset in zip(self.dims, offsets, strict=True):
            indices[dim] = builder.add(indices[dim], builder.index(offset))
        return Place(self.buffer, tuple(indices), self.dims, self.in_bounds)


def added(builder: TileBuilder, a: SSAValue, b: SSAValue) -> SSAValue:
    """The sum of two tiles."""
    assert isinstance(a.type, VectorType)
    return builder.append(arith.AddfOp(a, b) if isinstance(a.type.element_type, AnyFloat) else arith.AddiOp(a, b))


def all_added(builder: TileBuilder, totals: Sums, parts: Sums) -> list[SSAValue]:
    """The sums of tiles, pair by pair."""
    return [added(builder, total, part) for total, part in zip(totals, parts, strict=True)]
