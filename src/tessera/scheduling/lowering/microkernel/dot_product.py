"""The micro-kernel of dot products: the summed axis along the lanes of vectors, which are added up in the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.protocol import Read, Sums


@dataclass(frozen=True)
class DotProductKernel:
    """`rows` by `columns` sums, each a vector of `depth` lanes: rows of the left operand, and all columns of the right
    one at a time, [columns, depth]. With `fused` a product is not rounded before it is added.
    """

    builder: TileBuilder
    rows: int
    columns: int
    depth: int
    total: DType
    fused: bool

    def zeros(self) -> list[SSAValue]:
        """The sums before the first step."""
        return [self.builder.splat(0, self.total, (self.columns, self.depth))] * self.rows

    def step(self, left: Read, right: Read, sums: Sums) -> list[SSAValue]:
        """The sums after a step; the right operand is read first, each row of the left one when it is multiplied."""
        columns = right(0)
        return [self._added(total, left(row), columns) for row, total in enumerate(sums)]

    def finish(self, sums: Sums) -> Iterator[SSAValue]:
        """For each row the results down a tile of one column."""
        for total in sums:
            yield self.builder.reduce(total, "add", 1)

    def _added(self, total: SSAValue, row: SSAValue, columns: SSAValue) -> SSAValue:
        builder = self.builder
        spread = builder.spread(row, (self.columns, self.depth)) if self.columns > 1 else row
        if self.fused:
            return builder.append(math_dialect.FmaOp(columns, spread, total))
        return builder.append(arith.AddfOp(total, builder.append(arith.MulfOp(columns, spread))))
