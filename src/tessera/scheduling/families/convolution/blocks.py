"""How large blocks of a convolution's results are.

Sizes are found while a kernel runs, from those of the image: a schedule's tile says how much scratch memory a block
takes, and how wide it may be. So one kernel serves images of all sizes, small ones in a single block.
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.ir import SSAValue

from tessera.scheduling.language.columns import Knobs, Number, where
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS
from tessera.scheduling.lowering.ranges import ceil_div, rounded_down
from tessera.scheduling.lowering.spec import Window

LINE_PADDING = 64
"""Elements between rows of pixels in scratch memory, so that few of them fall into the same cache set."""

UNIT_DEPTH = 2 * UNIT_ROWS
"""Channels that a matrix unit multiplies at once, at most."""


def unit_step(run: int) -> int:
    """How many channels of a run of them, which is even, a matrix unit multiplies at once: as many as divide it."""
    return next((step for step in range(min(run, UNIT_DEPTH), 2, -1) if step % 2 == 0 and run % step == 0), 2)


def unit_height(pixels: int) -> int:
    """Pixels of one of the matrix unit's tiles in a row of so many: the row itself, or half of it."""
    return pixels if pixels <= UNIT_ROWS else pixels // 2


def packed_depth(channels: int, group: int, has_unit: bool) -> int:
    """Channels as packed weights and scratch memory have them: whole groups, and where there is a matrix unit, equal
    steps of it.
    """
    steps = max(1, -(-channels // UNIT_DEPTH)) if has_unit and group == 2 else 1
    return steps * -(-channels // (steps * group)) * group


class ScratchRows(NamedTuple):
    """Rows of pixels in scratch memory: those of a block of the tile's size, and elements from one to the next."""

    rows: Number
    line: Number


class Reach(NamedTuple):
    """How far results along one direction reach over the image: `stride` pixels for each, `span` more for the window's
    last element.
    """

    stride: int
    span: Number

    def pixels(self, results: Number) -> Number:
        """The pixels that so many results need."""
        return (results - 1) * self.stride + self.span + 1


def reaches(schedule: Knobs, window: Window) -> tuple[Reach, Reach]:
    """Down and across."""
    kh, kw, _ = schedule.integers("window")
    down, across = (
        Reach(stride, (size - 1) * dilation)
        for stride, size, dilation in zip(window.stride, (kh, kw), window.dilation, strict=True)
    )
    return down, across


def pixel_stride(depth: int, itemsize: int, merge: Number) -> Number:
    """Elements from a pixel to the next in scratch memory: a line apart from a power of two, so that neighbouring
    pixels do not fall into the same cache set; none between where a row of the window is one run.
    """
    apart = depth if depth * itemsize % 512 else depth + 64 // itemsize
    return where(merge, depth, apart)


def scratch_rows(
    schedule: Knobs, window: Window, pixel: Number, tile: tuple[Number, Number] | None = None
) -> ScratchRows:
    """The scratch memory of a block of the tile's size, or of another one, whose pixels are so many elements apart."""
    by, bx = schedule.integers("tile") if tile is None else tile
    down, across = reaches(schedule, window)
    return ScratchRows(down.pixels(by), across.pixels(bx) * pixel + LINE_PADDING)


def block_size(schedule: Knobs, window: Window, pixel: Number, rows: int, columns: int) -> tuple[Number, Number]:
    """Rows and columns of the blocks in which a worker makes so many results; `BlockSizes` says the same in Tile IR."""
    (ry, mr, _), (_, bx) = schedule.integers("micro"), schedule.integers("tile")
    down, across = reaches(schedule, window)
    memory = scratch_rows(schedule, window, pixel)
    width = _even(max(columns, 1), bx, mr)
    held = memory.rows * memory.line // (across.pixels(width) * pixel + LINE_PADDING)
    most = ((held - 1 - down.span) // down.stride + 1) // ry * ry
    return _even(max(rows, 1), most, ry), width


def _even(extent: int, most: Number, unit: Number) -> Number:
    """The size of the fewest blocks of `most` at most, a multiple of `unit`, that are about equal."""
    return -(-extent // (-(-extent // most) * unit)) * unit


class BlockSizes:
    """The code that finds how large blocks are."""

    def __init__(self, builder: TileBuilder, schedule: Knobs, window: Window, pixel: int) -> None:
        self.builder, self.pixel = builder, pixel
        self.ry, self.mr, _ = schedule.integers("micro")
        _, self.bx = schedule.integers("tile")
        self.down, self.across = reaches(schedule, window)
        self.memory = scratch_rows(schedule, window, pixel)

    def of(self, rows: SSAValue, columns: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Rows and columns of blocks of so many results in all, and the elements from a row of pixels to the next."""
        builder, one = self.builder, self.builder.index(1)
        bx = self._even(builder.maximum(columns, one), builder.index(self.bx), self.mr)
        reached = builder.add(builder.mul(builder.sub(bx, one), builder.index(self.across.stride)), one)
        pixels = builder.add(reached, builder.index(self.across.span))
        line = builder.add(builder.mul(pixels, builder.index(self.pixel)), builder.index(LINE_PADDING))
        held = builder.floor_div(builder.index(self.memory.rows * self.memory.line), line)
        spare = builder.sub(held, builder.index(1 + self.down.span))
        fitting = builder.add(builder.floor_div(spare, builder.index(self.down.stride)), one)
        most = rounded_down(builder, fitting, self.ry)
        return self._even(builder.maximum(rows, one), most, self.ry), bx, line

    def _even(self, extent: SSAValue, most: SSAValue, unit: int) -> SSAValue:
        builder = self.builder
        blocks = ceil_div(builder, extent, most)
        return builder.mul(ceil_div(builder, extent, builder.mul(blocks, builder.index(unit))), builder.index(unit))
