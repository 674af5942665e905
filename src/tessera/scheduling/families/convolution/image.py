"""The block of an image that a block of results reads, in scratch memory: channels together, rows apart, and the zeros
of the padding around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.families.convolution.blocks import scratch_rows
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import ConvolutionSpec, unit_axis
from tessera.scheduling.lowering.writer import TileWriter

TURNED = 16
"""Pixels, and channels, of a tile that is transposed in registers on its way into scratch memory."""
COPIED = 64
"""Channels that are copied at a time."""


@dataclass(frozen=True)
class ImageBlock:
    """A block of results: where it begins, how many rows and columns it has, and the elements of scratch memory from a
    row of its pixels to the next.
    """

    y: SSAValue
    x: SSAValue
    rows: SSAValue
    columns: SSAValue
    line: SSAValue


@dataclass(frozen=True)
class PackedPixels:
    """What a pixel is in scratch memory: its dtype, its channels, rounded up to what one product takes, and the
    elements from one to the next.
    """

    element: DType
    depth: int
    stride: int


class Writers(Protocol):
    """What gives a writer of tiles of these sizes at a position, and says whether they lie inside along each axis."""

    def __call__(
        self, sizes: dict[str, int], at: Mapping[str, SSAValue], bounded: Mapping[str, bool]
    ) -> TileWriter: ...


class StagedImage:
    """Scratch memory for a block of the image, and the code that fills it.

    `scratch` is [element, x, column, channel]: the first index counts single elements, since rows are apart by what a
    block needs; x steps from result to result, and column from pixel to pixel. With the knob `merge` the channels of
    neighbouring columns follow each other: a row of the window is one run.
    """

    def __init__(
        self,
        spec: ConvolutionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        image: Value,
        packed: PackedPixels,
        writers: Writers,
    ) -> None:
        """`image` is what is copied."""
        self.spec, self.builder, self.image = spec, builder, image
        self.element, self.depth, self.pixel, self.writers = packed.element, packed.depth, packed.stride, writers
        self.kh, self.kw, self.channels = schedule.integers("window")
        memory = scratch_rows(schedule, spec.window, self.pixel)
        run = self.kw * self.depth if schedule["merge"] else self.depth
        strides = [1, spec.window.stride[1] * self.pixel, self.pixel, 1]
        _, most, _ = schedule.integers("micro")
        kind = buffer_type(self.element, strides, [memory.rows * memory.line, most, TURNED, run])
        self.scratch = builder.alloc(kind, "L2")

    def read(
        self, block: ImageBlock, row: SSAValue, column: SSAValue, channel: SSAValue, shape: tuple[int, int]
    ) -> SSAValue:
        """The pixels that so many neighbouring results need, from a row and column of the block on."""
        place = [self._place(block, row, column), *[self.builder.index(0)] * 2, channel]
        return self.builder.load(self.scratch, place, [1, 3], shape, [True, True])

    def _place(self, block: ImageBlock, row: SSAValue, column: SSAValue) -> SSAValue:
        """The element at which a pixel begins."""
        builder = self.builder
        return builder.add(builder.mul(row, block.line), builder.mul(column, builder.index(self.pixel)))

    def fill(self, block: ImageBlock, height: SSAValue, width: SSAValue) -> None:
        """Copies the pixels that a block of results needs, and zeros where the window leaves the image of so many rows
        and columns.
        """
        builder, (sy, sx) = self.builder, self.spec.window.stride
        (top, left), (dy, dx) = self.spec.window.padding, self.spec.window.dilation
        first = builder.sub(builder.mul(block.y, builder.index(sy)), builder.index(top))
        column = builder.sub(builder.mul(block.x, builder.index(sx)), builder.index(left))
        rows = self._reach(block.rows, sy, (self.kh - 1) * dy)
        columns = self._reach(block.columns, sx, (self.kw - 1) * dx)
        zero = builder.index(0)
        # Columns [before, end) of the block lie inside the image; neither exceeds the block.
        before = builder.minimum(columns, builder.maximum(zero, builder.sub(zero, column)))
        end = builder.maximum(before, builder.minimum(columns, builder.sub(width, column)))
        with builder.loop(zero, rows, 1) as loop:
            h = builder.add(first, loop.index)

            def inside() -> list[SSAValue]:
                self._zeros(block, loop.index, zero, before)
                self._copy(block, loop.index, h, column, before, end)
                self._zeros(block, loop.index, end, columns)
                return []

            def outside() -> list[SSAValue]:
                self._zeros(block, loop.index, zero, columns)
                return []

            below = builder.compare(h, height, "slt")
            after = builder.compare(zero, h, "sle")
            builder.branch(builder.both(below, after), inside, outside)

    def _reach(self, results: SSAValue, stride: int, span: int) -> SSAValue:
        """The pixels along one direction that so many results need."""
        builder = self.builder
        steps = builder.mul(builder.sub(results, builder.index(1)), builder.index(stride))
        return builder.add(steps, builder.index(span + 1))

    def _zeros(self, block: ImageBlock, row: SSAValue, lower: SSAValue, upper: SSAValue) -> None:
        builder = self.builder
        with builder.loop(lower, upper, 1) as column:
            for channel, lanes in _pieces(0, self.depth, COPIED):
                zeros = builder.splat(0.0, self.element, (1, lanes))
                self._put(block, zeros, row, column.index, builder.index(channel))

    def _put(self, block: ImageBlock, value: SSAValue, row: SSAValue, column: SSAValue, channel: SSAValue) -> None:
        place = [self._place(block, row, column), *[self.builder.index(0)] * 2, channel]
        self.builder.store(value, self.scratch, place, [2, 3], [True, True])

    def _copy(
        self, block: ImageBlock, row: SSAValue, h: SSAValue, first: SSAValue, lower: SSAValue, upper: SSAValue
    ) -> None:
        """Columns [lower, upper) of a row of the block, all of which lie inside the image."""
        turned = unit_axis(self.image, self.spec.arguments, "c") == "w"
        if not turned:
            self._copy_columns(block, row, h, first, (lower, upper), 1, COPIED)
            return
        builder = self.builder
        several = builder.index(TURNED)
        whole = builder.mul(builder.floor_div(builder.sub(upper, lower), several), several)
        middle = builder.add(lower, whole)
        self._copy_columns(block, row, h, first, (lower, middle), TURNED, TURNED)
        self._copy_columns(block, row, h, first, (middle, upper), 1, TURNED)

    def _copy_columns(
        self,
        block: ImageBlock,
        row: SSAValue,
        h: SSAValue,
        first: SSAValue,
        columns: tuple[SSAValue, SSAValue],
        pixels: int,
        channels: int,
    ) -> None:
        """Tiles of so many pixels and channels; channels that scratch memory has too many are zero."""
        builder = self.builder
        whole = self.channels // channels * channels
        with builder.loop(*columns, pixels) as column:
            at = {"h": h, "x": builder.index(0), "w": builder.add(first, column.index)}
            with builder.loop(builder.index(0), builder.index(whole), channels) as channel:
                self._put(block, self._pixels(at, channel.index, pixels, channels), row, column.index, channel.index)
            for start, lanes in _pieces(whole, self.channels, channels):
                place = builder.index(start)
                self._put(block, self._pixels(at, place, pixels, lanes), row, column.index, place)
            for start, lanes in _pieces(self.channels, self.depth, channels):
                zeros = builder.splat(0.0, self.element, (pixels, lanes))
                self._put(block, zeros, row, column.index, builder.index(start))

    def _pixels(self, at: Mapping[str, SSAValue], channel: SSAValue, pixels: int, channels: int) -> SSAValue:
        writer = self.writers({"w": pixels, "c": channels}, {**at, "c": channel}, {"w": True, "c": True})
        return writer.write(self.image, (pixels, channels))


def _pieces(first: int, end: int, largest: int) -> Iterator[tuple[int, int]]:
    """(first, lanes) of pieces of `largest` lanes, then ever smaller halves, that cover [first, end) exactly."""
    while first < end:
        lanes = largest
        while lanes > end - first:
            lanes //= 2
        yield first, lanes
        first += lanes
