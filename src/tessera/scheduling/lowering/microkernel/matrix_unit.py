"""The micro-kernel of a CPU's matrix unit: tiles of up to 16 rows by 16 columns.

The left operand lies in rows, the right one in groups of neighbouring rows, side by side: [depth / group, 16, group].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.protocol import Place, Read, Sums

VECTOR: Final = "vector"
MATRIX: Final = "matrix"
"""The choices of the knob `unit`: which instructions multiply."""
UNIT_ROWS: Final = 16
"""The rows of one of the unit's registers: of sums, and of groups (two of bf16, four bytes) of the right operand. A
register has as many columns of sums.
"""
UNIT_REGISTERS: Final = 8


@dataclass(frozen=True)
class MatrixUnitKernel:
    """A register tile of several of the unit's tiles, of `height` rows each, which begin at these `rows` and `columns`
    of it.
    """

    builder: TileBuilder
    rows: Sequence[int]
    columns: Sequence[int]
    height: int
    depth: int
    element: DType
    total: DType

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """The first row and column of each of the unit's tiles."""
        return [(row, column) for row in self.rows for column in self.columns]

    def zeros(self) -> list[SSAValue]:
        """The sums before the first step: one for each tile, as registers are copied by way of memory."""
        return [self.builder.splat(0, self.total, (self.height, UNIT_ROWS)) for _ in self.tiles]

    def step(self, left: Read, right: Read, sums: Sums) -> list[SSAValue]:
        """The sums after a step. Operands are read just before they are first multiplied: the processor has few more
        registers for tiles than the eight that have names (one thread, operands in L2: 1.56 TFLOP/s so, 1.47 with all
        of them read first).
        """
        left, right = cache(left), cache(right)
        sizes = self.height, UNIT_ROWS, self.depth
        return [
            self.builder.mma(left(row), right(column), total, *sizes, self.element, matrix_unit=True)
            for (row, column), total in zip(self.tiles, sums, strict=True)
        ]

    def finish(self, sums: Sums) -> Iterator[SSAValue]:
        """The sums are the results."""
        return iter(sums)

    def load(self, place: Place) -> list[SSAValue]:
        """The sums of a register tile that lies in memory."""
        places = self._places(place)
        return [each.load(self.builder, (self.height, UNIT_ROWS)) for each in places]

    def store(self, sums: Sums, place: Place) -> None:
        """Writes the sums of a register tile to memory."""
        for tile, each in zip(sums, self._places(place), strict=True):
            each.store(self.builder, tile)

    def _places(self, place: Place) -> list[Place]:
        return [place.moved(self.builder, *tile) for tile in self.tiles]
