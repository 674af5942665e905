"""Convolutions of bf16 on a CPU's matrix unit: the nest of `convolution/nest.py` around tiles of 16 pixels by 64 bytes.

Packed weights have the pairs of neighbouring channels side by side that the unit wants, and pixels are rows of its
first operand where they lie. A register tile is up to four of the unit's: one row of 32 results, or two rows of 16,
by 32 channels. Its sums pass through scratch memory, where epilogues read them a few pixels at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.scheduling.families.convolution.blocks import RowTile, unit_height, unit_step
from tessera.scheduling.families.convolution.image import ImageBlock
from tessera.scheduling.families.convolution.nest import ConvolutionLowering, Step
from tessera.scheduling.families.product.problem import UNIT_GROUPS
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import ConvolutionSpec
from tessera.scheduling.lowering.writer import ArgumentTile

MOST_PIXELS = 8
"""Pixels whose sums an epilogue takes at once, at most: sixteen vectors (4 take 1.02 of the time)."""


class MatrixConvolution(ConvolutionLowering):
    """The nest, with register tiles of the matrix unit. The rule `matrix-unit` says which schedules it takes."""

    def __init__(
        self,
        spec: ConvolutionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(spec, schedule, builder, arguments)
        assert self.pairs, "rule matrix-unit"
        self.k_step = unit_step(self.kw * self.depth if self.merge else self.depth)
        self.height = unit_height(self.mr)
        # Whole parts of a register tile: what lies past it is another worker's.
        self.part = next(pixels for pixels in range(MOST_PIXELS, 0, -1) if self.mr % pixels == 0)
        shape, strides = [self.ry, self.mr, self.nr], [self.mr * self.nr, self.nr, 1]
        self.sums = builder.alloc(buffer_type(spec.accumulator.dtype, strides, shape), "L1")

    def _tiles(self, rows: int) -> list[tuple[int, int, int]]:
        """Row, first pixel and first channel of the unit's tiles in a register tile."""
        return [
            (row, pixel, channel)
            for row in range(rows)
            for pixel in range(0, self.mr, self.height)
            for channel in range(0, self.nr, UNIT_GROUPS)
        ]

    def _zeros(self, rows: int, tile: RowTile) -> Sequence[SSAValue]:
        # One for each, as registers are copied by way of memory.
        shape = (self.height, UNIT_GROUPS)
        return [self.builder.splat(0, self.spec.accumulator.dtype, shape) for _ in self._tiles(rows)]

    def _products(self, at: Step, sums: Sequence[SSAValue]) -> Sequence[SSAValue]:
        # Operands are read just before they are first multiplied, as in products (`product/matrix/lowering.py`).
        pixels: dict[tuple[int, int], SSAValue] = {}
        weights: dict[int, SSAValue] = {}
        sizes, results = (self.height, UNIT_GROUPS, self.k_step), []
        for (row, pixel, channel), total in zip(self._tiles(len(sums) // self._across), sums, strict=True):
            if (row, pixel) not in pixels:
                pixels[row, pixel] = self._read(at, row, pixel, self.height)
            if channel not in weights:
                weights[channel] = self._groups(at.weights, channel)
            operands = pixels[row, pixel], weights[channel], total
            results.append(self.builder.mma(*operands, *sizes, self.element, matrix_unit=True))
        return results

    @property
    def _across(self) -> int:
        """The unit's tiles in one row of a register tile."""
        return len(self._tiles(1))

    def _groups(self, row: SSAValue, channel: int) -> SSAValue:
        """The pairs of `k_step` channels that are summed over, for 16 channels of results."""
        builder, buffer = self.builder, self.arguments[self.spec.weights].value
        shape = (self.k_step // self.step, UNIT_GROUPS, self.step)
        place = [row, builder.index(channel), builder.index(0)]
        return builder.load(buffer, place, [0, 1, 2], shape, [True] * 3)

    def _finish(
        self, sums: Sequence[SSAValue], block: ImageBlock, channel: SSAValue, rows: int, row: SSAValue, tile: RowTile
    ) -> None:
        builder, zero = self.builder, self.builder.index(0)
        for (number, pixel, at), total in zip(self._tiles(rows), sums, strict=True):
            place = [builder.index(number), builder.index(pixel), builder.index(at)]
            builder.store(total, self.sums, place, [1, 2], [True, True])
        pixels = builder.minimum(builder.index(self.mr), builder.sub(block.columns, tile.x))
        shape = (self.part, self.nr)
        for number in range(rows):
            y = self._row_of(block, row, number)
            with builder.loop(zero, pixels, self.part) as loop:
                some = builder.load(self.sums, [builder.index(number), loop.index, zero], [1, 2], shape, [True, True])
                first = builder.add(tile.x, loop.index)
                part = RowTile(first, self.part, tile.inside)
                self._epilogue(some, y, builder.add(block.x, first), channel, part)
