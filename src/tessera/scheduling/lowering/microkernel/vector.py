"""Micro-kernels of vectors: columns along the lanes, and elements of the left operand that are broadcast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tessera.dtypes import DType, int8
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.protocol import Read, Sums
from tessera.scheduling.lowering.spec import QUAD


@dataclass(frozen=True)
class VectorKernel:
    """`rows` by `columns` sums in the dtype `total`, of elements that are multiplied as `element`, `depth` of them by
    one instruction; of several `tiles`, one below the other, each by itself.
    """

    builder: TileBuilder
    rows: int
    columns: int
    depth: int
    element: DType
    total: DType
    tiles: int = 1

    def zeros(self) -> list[SSAValue]:
        """The sums before the first step."""
        return [self.builder.splat(0, self.total, (self.rows, self.columns))] * self.tiles

    def step(self, left: Read, right: Read, sums: Sums) -> list[SSAValue]:
        """The sums after a step; `left` is asked for tiles by their number."""
        right = cache(right)
        sizes = self.rows, self.columns, self.depth
        return [
            self.builder.mma(left(number), right(0), total, *sizes, self.element) for number, total in enumerate(sums)
        ]

    def finish(self, sums: Sums) -> Iterator[SSAValue]:
        """The sums are the results."""
        return iter(sums)


@dataclass(frozen=True)
class ByteKernel:
    """`rows` by `columns` sums in int32 of products of int8, four of them by one instruction.

    The instruction takes a first factor without a sign: what is packed of the left operand has been moved up by 128
    (`without_sign`), and what this adds to every row of sums is summed beside them and taken away in the end.
    """

    builder: TileBuilder
    rows: int
    columns: int
    total: DType
    depth: int = QUAD

    def zeros(self) -> list[SSAValue]:
        """The sums before the first step, and the row that is taken away."""
        return [self.builder.splat(0, self.total, (rows, self.columns)) for rows in (self.rows, 1)]

    def step(self, left: Read, right: Read, sums: Sums) -> list[SSAValue]:
        """The sums after a step."""
        right = cache(right)
        acc = self._multiplied(left(0), right(0), sums[0], self.rows)
        moved = self.builder.splat(-128, int8, (1, self.depth), 0)
        return [acc, self._multiplied(moved, right(0), sums[1], 1)]

    def finish(self, sums: Sums) -> Iterator[SSAValue]:
        """The sums of the bytes as they were."""
        acc, moved = sums
        yield self.builder.append(arith.SubiOp(acc, self.builder.spread(moved, (self.rows, self.columns))))

    def _multiplied(self, left: SSAValue, right: SSAValue, total: SSAValue, rows: int) -> SSAValue:
        return self.builder.mma(left, right, total, rows, self.columns, self.depth, int8, unsigned_a=True)


def without_sign(builder: TileBuilder, tile: SSAValue, shape: tuple[int, int]) -> SSAValue:
    """Bytes moved up by 128, as `ByteKernel` wants its left operand."""
    return builder.append(arith.XOrIOp(tile, builder.splat(-128, int8, shape)))
