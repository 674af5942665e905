"""Convolutions of bf16 on a CPU's matrix unit: the nest of `convolution/nest.py` around tiles of 16 pixels by 64 bytes.

Packed weights have the pairs of neighbouring channels side by side that the unit wants, and pixels are rows of its
first operand where they lie. A register tile is up to four of the unit's: one row of 32 results, or two rows of 16,
by 32 channels. Its sums pass through scratch memory, where epilogues read them a few pixels at a time.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.scheduling.families.convolution.blocks import unit_height, unit_step
from tessera.scheduling.families.convolution.image import ImageBlock
from tessera.scheduling.families.convolution.nest import BlockedConvolution, WindowStep
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS, MatrixUnitKernel
from tessera.scheduling.lowering.microkernel.protocol import MicroKernel, Place, Read, Sums
from tessera.scheduling.lowering.spec import ConvolutionSpec
from tessera.scheduling.lowering.writer import ArgumentTile

MOST_PIXELS = 8
"""Pixels whose sums an epilogue takes at once, at most: sixteen vectors (4 take 1.02 of the time)."""


class MatrixConvolution(BlockedConvolution):
    """The nest, with register tiles of the matrix unit, whose rows are the pixels of several rows of results, one row
    behind the other. The rule `matrix-unit` says which schedules it takes.
    """

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
        self.sums = self.scratch(spec.accumulator.dtype, [self.ry * self.mr, self.nr], "L1")

    def _kernel(self, rows: int, tile: AxisTile) -> MatrixUnitKernel:
        pixels, channels = range(0, rows * self.mr, self.height), range(0, self.nr, UNIT_ROWS)
        sums = self.spec.accumulator.dtype
        return MatrixUnitKernel(self.builder, pixels, channels, self.height, self.k_step, self.element, sums)

    def _pixels(self, at: WindowStep, number: int) -> SSAValue:
        return self._read(at, *divmod(number, self.mr), self.height)

    def _weights_at(self, at: WindowStep) -> Read:
        """The pairs of `k_step` channels that are summed over, for 16 channels of results."""
        shape = (self.k_step // self.step, UNIT_ROWS, self.step)
        return lambda channel: self.weights.groups([], at.weights, self.builder.index(channel), shape)

    def _finish(
        self,
        kernel: MicroKernel,
        sums: Sums,
        block: ImageBlock,
        channel: SSAValue,
        rows: int,
        row: SSAValue,
        tile: AxisTile,
    ) -> None:
        builder, zero = self.builder, self.builder.index(0)
        self._kernel(rows, tile).store(sums, Place(self.sums, (zero, zero), (0, 1), (True, True)))
        pixels = builder.minimum(builder.index(self.mr), builder.sub(block.columns, tile.start))
        shape = (self.part, self.nr)
        for number in range(rows):
            y = self._row_of(block, row, number)
            with builder.loop(zero, pixels, self.part) as loop:
                at = builder.add(loop.index, builder.index(number * self.mr))
                some = builder.load(self.sums, [at, zero], [0, 1], shape, [True, True])
                first = builder.add(tile.start, loop.index)
                self._epilogue(some, y, builder.add(block.x, first), channel, AxisTile(first, self.part, tile.inside))
