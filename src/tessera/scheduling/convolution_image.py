"""The block of an image that a block of results reads, in scratch memory: channels together, rows apart, and the zeros
of the padding around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.attributes import buffer_type
from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.expression import Value
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import ConvolutionSpec, Window, unit_axis
from tessera.scheduling.writer import TileWriter

TURNED = 16
"""Pixels, and channels, of a tile that is transposed in registers on its way into scratch memory."""
COPIED = 64
"""Channels that are copied at a time."""


@dataclass(frozen=True)
class Block:
    """A block of results: where it begins, and how many rows and columns it has."""

    y: SSAValue
    x: SSAValue
    rows: SSAValue
    columns: SSAValue


class Writers(Protocol):
    """What gives a writer of tiles of these sizes at a position, and says whether they lie inside along each axis."""

    def __call__(
        self, sizes: dict[str, int], at: Mapping[str, SSAValue], bounded: Mapping[str, bool]
    ) -> TileWriter: ...


class StagedImage:
    """Scratch memory for a block of the image, and the code that fills it.

    `scratch` is [row, x, column, channel], column `stride x + column`. With the knob `merge` the channels of
    neighbouring columns follow each other: a row of the window is one run.
    """

    def __init__(
        self,
        spec: ConvolutionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        image: Value,
        element: DType,
        depth: int,
        writers: Writers,
    ) -> None:
        """`image` is what is copied, as `element`; `depth` its channels, rounded up to what one product takes."""
        self.spec, self.builder, self.image = spec, builder, image
        self.element, self.depth, self.writers = element, depth, writers
        self.kh, self.kw, self.channels = schedule.integers("window")
        rows, line, columns, pixel = scratch_shape(schedule, spec.window, depth, element.itemsize)
        run = self.kw * depth if schedule["merge"] else depth
        step = spec.window.stride[1] * pixel
        _, bx = schedule.integers("tile")
        kind = buffer_type(element, [line, step, pixel, 1], [rows, bx, columns, run])
        self.scratch = builder.alloc(kind, "L2")

    def fill(self, block: Block, height: SSAValue, width: SSAValue) -> None:
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
                self._zeros(loop.index, zero, before)
                self._copy(loop.index, h, column, before, end)
                self._zeros(loop.index, end, columns)
                return []

            def outside() -> list[SSAValue]:
                self._zeros(loop.index, zero, columns)
                return []

            below = builder.compare(h, height, "slt")
            after = builder.compare(zero, h, "sle")
            builder.branch(builder.both(below, after), inside, outside)

    def _reach(self, results: SSAValue, stride: int, span: int) -> SSAValue:
        """The pixels along one direction that so many results need."""
        builder = self.builder
        steps = builder.mul(builder.sub(results, builder.index(1)), builder.index(stride))
        return builder.add(steps, builder.index(span + 1))

    def _zeros(self, row: SSAValue, lower: SSAValue, upper: SSAValue) -> None:
        builder = self.builder
        with builder.loop(lower, upper, 1) as column:
            for channel, lanes in _pieces(0, self.depth, COPIED):
                zeros = builder.splat(0.0, self.element, (1, lanes))
                self._put(zeros, row, column.index, builder.index(channel))

    def _put(self, value: SSAValue, row: SSAValue, column: SSAValue, channel: SSAValue) -> None:
        inside = [True, True]
        self.builder.store(value, self.scratch, [row, self.builder.index(0), column, channel], [2, 3], inside)

    def _copy(self, row: SSAValue, h: SSAValue, first: SSAValue, lower: SSAValue, upper: SSAValue) -> None:
        """Columns [lower, upper) of a row of the block, all of which lie inside the image."""
        turned = unit_axis(self.image, self.spec.arguments, "c") == "w"
        if not turned:
            self._copy_columns(row, h, first, (lower, upper), 1, COPIED)
            return
        builder = self.builder
        several = builder.index(TURNED)
        whole = builder.mul(builder.floor_div(builder.sub(upper, lower), several), several)
        middle = builder.add(lower, whole)
        self._copy_columns(row, h, first, (lower, middle), TURNED, TURNED)
        self._copy_columns(row, h, first, (middle, upper), 1, TURNED)

    def _copy_columns(
        self,
        row: SSAValue,
        h: SSAValue,
        first: SSAValue,
        columns: tuple[SSAValue, SSAValue],
        pixels: int,
        channels: int,
    ) -> None:
        """Tiles of so many pixels and channels; a channel that pairs have too many is zero."""
        builder = self.builder
        whole = self.channels // channels * channels
        with builder.loop(*columns, pixels) as column:
            at = {"h": h, "x": builder.index(0), "w": builder.add(first, column.index)}
            with builder.loop(builder.index(0), builder.index(whole), channels) as channel:
                self._put(self._pixels(at, channel.index, pixels, channels), row, column.index, channel.index)
            for start, lanes in _pieces(whole, self.channels, channels):
                place = builder.index(start)
                self._put(self._pixels(at, place, pixels, lanes), row, column.index, place)
            if self.depth > self.channels:
                zeros = builder.splat(0.0, self.element, (pixels, 1))
                self._put(zeros, row, column.index, builder.index(self.channels))

    def _pixels(self, at: Mapping[str, SSAValue], channel: SSAValue, pixels: int, channels: int) -> SSAValue:
        writer = self.writers({"w": pixels, "c": channels}, {**at, "c": channel}, {"w": True, "c": True})
        return writer.write(self.image, (pixels, channels))


def scratch_shape(schedule: Schedule, window: Window, depth: int, itemsize: int) -> tuple[int, int, int, int]:
    """Rows of a block of the image, elements from one to the next, columns, elements from one to the next."""
    (by, bx), (kh, kw, _) = schedule.integers("tile"), schedule.integers("window")
    rows = (by - 1) * window.stride[0] + (kh - 1) * window.dilation[0] + 1
    columns = (bx - 1) * window.stride[1] + (kw - 1) * window.dilation[1] + 1
    pixel = depth if schedule["merge"] else _pixel_stride(depth, itemsize)
    return rows, columns * pixel + COPIED, columns, pixel


def _pixel_stride(depth: int, itemsize: int) -> int:
    """Elements from a pixel to the next in scratch memory: a line apart from a power of two, so that neighbouring
    pixels do not fall into the same cache set.
    """
    line = 64 // itemsize
    return depth if depth * itemsize % 512 else depth + line


def _pieces(first: int, end: int, largest: int) -> Iterator[tuple[int, int]]:
    """(first, lanes) of pieces of `largest` lanes, then ever smaller halves, that cover [first, end) exactly."""
    while first < end:
        lanes = largest
        while lanes > end - first:
            lanes //= 2
        yield first, lanes
        first += lanes
