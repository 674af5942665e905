"""Lowering a convolution for CPUs: an implicit matrix product of image pixels and packed weights.

Results are made register tile by register tile: pixels of one or several rows of the result down, channels along the
lanes. Each tile sums over the whole window and all channels, reading pixels where they lie: no matrix of windows exists
anywhere. A block of the image goes through scratch memory, with the zeros of the padding around it, channels together
and rows apart, so that the innermost loop has no conditions and its addresses are constants; an image without padding
whose channels lie together may be read in place.

    for each image: for blocks of results as large as their pixels' scratch memory permits:
        scratch = the block's pixels, padded                    (pack_a)
        for panels of NR channels: for tiles of RY rows of MR results in the block:      (order "rows": the other way)
            for each row and column of the window, each channel: sums += pixels x weights
            epilogue, store

Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures" (SC 2018), sum so over
blocked layouts; here the layouts are those of users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from xdsl.ir import SSAValue

from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.convolution.blocks import (
    BlockSizes,
    RowTile,
    ceil_div,
    over_row,
    packed_depth,
    pixel_stride,
    tails,
)
from tessera.scheduling.families.convolution.image import ImageBlock, PackedPixels, StagedImage
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import ConvolutionSpec
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter, extent_of

HALF = "half"
"""The axis of packed weights along which the two channels of a pair lie."""


def multiplies_pairs(spec: ConvolutionSpec, native_bf16: bool) -> bool:
    """Whether products are of pairs of bf16, summed in fp32 by one instruction: as the weights are packed, if they
    are, else as a machine with such an instruction does it.
    """
    axes = spec.arguments[spec.weights].axes
    if "row" in axes:
        return HALF in axes
    raw = spec.image.arguments[0] if spec.image.operation == "cast" else spec.image
    return native_bf16 and raw.dtype is bf16 and spec.accumulator.dtype is fp32


class ConvolutionLowering:
    """The nest, with register tiles of vectors."""

    def __init__(
        self,
        spec: ConvolutionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.pairs = pairs = HALF in spec.arguments[spec.weights].axes
        self.ry, self.mr, self.nr = schedule.integers("micro")
        self.kh, self.kw, self.channels = schedule.integers("window")
        self.unroll = schedule.integer("unroll")
        self.fetches = schedule.integer("pipeline_depth") >= 2
        self.heights = (self.mr, *tails(self.mr)) if schedule["tails"] else (self.mr,)
        self.split = str(schedule["parallel"])
        self.pixels_outer = schedule["order"] == "rows"
        self.element = bf16 if pairs else spec.accumulator.dtype
        self.step = 2 if pairs else 1
        self.depth = packed_depth(self.channels, self.step, has_unit="unit" in schedule)
        self.k_step = self.step
        self.image = spec.image.arguments[0] if pairs and spec.image.operation == "cast" else spec.image
        self.merge = bool(schedule["merge"])
        pixel = pixel_stride(self.depth, self.element.itemsize, self.merge)
        self.sizes = BlockSizes(builder, schedule, spec.window, pixel)
        self.staged: StagedImage | None = None
        if schedule["pack_a"]:
            packed = PackedPixels(self.element, self.depth, pixel)
            self.staged = StagedImage(spec, schedule, builder, self.image, packed, self._writer)

    # -- the nest -------------------------------------------------------------------------------------------------

    def lower(self) -> None:
        builder, spec = self.builder, self.spec
        axes = (*spec.batch, "y", "x", "n")
        self.extents = {axis: self._extent(axis) for axis in (*axes, "h", "w", "c")}
        steps = [1] * len(spec.batch) + [self.ry, self.mr, self.nr]
        place = {"batch": 0, "rows": len(spec.batch), "pixels": len(axes) - 2, "columns": len(axes) - 1}[self.split]
        with builder.parallel([self.extents[axis] for axis in axes], steps, place) as bounds:
            *batch, (top, bottom), (left, right), channels = bounds
            by, bx, line = self.sizes.of(builder.sub(bottom, top), builder.sub(right, left))
            self.at: dict[str, SSAValue] = {}
            with ExitStack() as nest:
                for axis, (lower, upper) in zip(spec.batch, batch, strict=True):
                    self.at[axis] = nest.enter_context(builder.loop(lower, upper, 1)).index
                y = nest.enter_context(self._blocks(top, bottom, by))
                x = nest.enter_context(self._blocks(left, right, bx, macro_tile=True))
                rows, columns = builder.minimum(by, builder.sub(bottom, y)), builder.minimum(bx, builder.sub(right, x))
                self._block(ImageBlock(y, x, rows, columns, line), channels)

    @contextmanager
    def _blocks(self, lower: SSAValue, upper: SSAValue, size: SSAValue, macro_tile: bool = False) -> Iterator[SSAValue]:
        """A loop over blocks along one side of the results: where each begins."""
        builder = self.builder
        count = ceil_div(builder, builder.sub(upper, lower), size)
        with builder.loop(builder.index(0), count, 1, macro_tile=macro_tile) as loop:
            yield builder.add(lower, builder.mul(loop.index, size))

    def _extent(self, axis: str) -> SSAValue:
        # The result first: packed weights have rows and panels, not channels.
        result = self.arguments[self.spec.outputs[0].argument]
        return extent_of(self.builder, (result, *self.arguments.values()), axis)

    def _block(self, block: ImageBlock, channels: tuple[SSAValue, SSAValue]) -> None:
        builder = self.builder
        if self.staged is not None:
            self.staged.fill(block, self.extents["h"], self.extents["w"])
        if not self.pixels_outer:
            with builder.loop(*channels, self.nr) as panel:
                first = self._first_weight(panel.index)
                self._over_results(block, partial(self._tile, block, panel.index, first))
            return

        def panels(rows: int, row: SSAValue, tile: RowTile) -> None:
            with builder.loop(*channels, self.nr) as panel:
                self._tile(block, panel.index, self._first_weight(panel.index), rows, row, tile)

        self._over_results(block, panels)

    def _over_results(self, block: ImageBlock, body: Callable[[int, SSAValue, RowTile], None]) -> None:
        """Register tiles over a block: `body` gets how many rows, the first one, and what each is along the row."""
        for rows, lower, upper in self._row_loops(block.rows):
            with self.builder.loop(lower, upper, rows) as row:
                over_row(self.builder, block.columns, self.heights, partial(body, rows, row.index))

    def _row_loops(self, rows: SSAValue) -> Sequence[tuple[int, SSAValue, SSAValue]]:
        """(rows of a register tile, first row, end): several rows at once, then one by one what is left."""
        builder, zero = self.builder, self.builder.index(0)
        if self.ry == 1:
            return ((1, zero, rows),)
        several = builder.index(self.ry)
        middle = builder.mul(builder.floor_div(rows, several), several)
        return ((self.ry, zero, middle), (1, middle, rows))

    def _writer(self, sizes: dict[str, int], at: Mapping[str, SSAValue], bounded: Mapping[str, bool]) -> TileWriter:
        """A writer of the operand or epilogue expressions at a position."""
        batch = {axis: self.at[axis] for axis in self.spec.batch}
        writer = TileWriter(self.builder, self.arguments, sizes, Scope(frozenset(), 0))
        writer.enter({**batch, **at}, bounded)
        return writer

    # -- the register tile ----------------------------------------------------------------------------------------

    def _first_weight(self, channel: SSAValue) -> SSAValue:
        """The row of the packed weights at which the panel of a channel begins."""
        builder = self.builder
        panel = builder.floor_div(channel, builder.index(self.nr))
        if self.spec.groups is not None:
            last = builder.add(self.extents["n"], builder.index(self.nr - 1))
            panels = builder.floor_div(last, builder.index(self.nr))
            panel = builder.add(builder.mul(self.at[self.spec.groups], panels), panel)
        return builder.mul(panel, builder.index(self.kh * self.kw * self.depth // self.step))

    def _tile(
        self, block: ImageBlock, channel: SSAValue, first: SSAValue, rows: int, row: SSAValue, tile: RowTile
    ) -> None:
        """Sums, and stores, a register tile of `rows` rows of results from `row` of the block on."""
        builder = self.builder
        if self.fetches:
            self._fetch(block, channel, rows, row, tile)
        kw, depth = (1, self.kw * self.depth) if self.merge else (self.kw, self.depth)
        line, run = builder.index(kw * depth // self.step), builder.index(depth // self.step)
        with self._window(self.kh, self._rows_inside(block, row, rows), self._zeros(rows, tile), first, line) as down:
            columns = builder.index(0), builder.index(kw)
            with self._window(kw, columns, down.sums, down.row, run) as across:
                groups = self.k_step // self.step
                with builder.loop(builder.index(0), run, groups, across.sums, self.unroll) as loop:
                    c = loop.index if self.step == 1 else builder.mul(loop.index, builder.index(self.step))
                    weights = builder.add(across.row, loop.index)
                    at = Step(block, row, tile, down.index, across.index, c, weights)
                    loop.yielded = tuple(self._products(at, loop.carried))
                across.sums = loop.results
            down.sums = across.sums
        self._finish(down.sums, block, channel, rows, row, tile)

    def _zeros(self, rows: int, tile: RowTile) -> Sequence[SSAValue]:
        return [self.builder.splat(0, self.spec.accumulator.dtype, (tile.height, self.nr))] * rows

    def _products(self, at: Step, sums: Sequence[SSAValue]) -> Sequence[SSAValue]:
        """The sums after a step."""
        weights, sizes = self._weights(at.weights), (at.tile.height, self.nr, self.step)
        return [
            self.builder.mma(self._read(at, number, 0, at.tile.height), weights, total, *sizes, self.element)
            for number, total in enumerate(sums)
        ]

    def _finish(
        self, sums: Sequence[SSAValue], block: ImageBlock, channel: SSAValue, rows: int, row: SSAValue, tile: RowTile
    ) -> None:
        """Stores the results of `rows` rows from `row` of the block on."""
        for number, total in enumerate(sums):
            self._epilogue(total, self._row_of(block, row, number), self.builder.add(block.x, tile.x), channel, tile)

    def _row_of(self, block: ImageBlock, row: SSAValue, number: int) -> SSAValue:
        builder = self.builder
        return builder.add(builder.add(block.y, row), builder.index(number))

    def _fetch(self, block: ImageBlock, channel: SSAValue, rows: int, row: SSAValue, tile: RowTile) -> None:
        """Fetches the lines that a register tile will be stored to while it is summed."""
        builder, x = self.builder, self.builder.add(block.x, tile.x)
        for number in range(rows):
            y = self._row_of(block, row, number)
            where = {**{axis: self.at[axis] for axis in self.spec.batch}, "y": y, "x": x, "n": channel}
            for output in self.spec.outputs:
                argument = self.arguments[output.argument]
                axes = self.spec.arguments[output.argument].axes
                if axes[-2:] == ("x", "n"):
                    builder.prefetch(argument.value, [where[axis] for axis in axes], tile.height, self.nr, write=True)

    def _rows_inside(self, block: ImageBlock, row: SSAValue, rows: int) -> tuple[SSAValue, SSAValue]:
        """The rows of the window, from one to the end, that meet the image in any of so many rows of results."""
        builder, zero, window = self.builder, self.builder.index(0), self.spec.window
        stride, apart = builder.index(window.stride[0]), builder.index(window.dilation[0])
        y = builder.add(block.y, row)
        last = builder.add(y, builder.index(rows - 1))
        top, rounding = window.padding[0], window.dilation[0] - 1
        # Quotients are rounded towards zero, which is past the ends that matter where they are negative.
        before = builder.sub(builder.index(top + rounding), builder.mul(last, stride))
        lower = builder.maximum(zero, builder.truncated_div(before, apart))
        reach = builder.sub(builder.add(self.extents["h"], builder.index(top + rounding)), builder.mul(y, stride))
        return lower, builder.minimum(builder.index(self.kh), builder.truncated_div(reach, apart))

    @contextmanager
    def _window(
        self,
        extent: int,
        bounds: tuple[SSAValue, SSAValue],
        sums: Sequence[SSAValue],
        first: SSAValue,
        stride: SSAValue,
    ) -> Iterator[_Walk]:
        """A loop along one side of the window; none where it has one element."""
        builder = self.builder
        if extent == 1:
            yield _Walk(builder.index(0), first, sums)
            return
        with builder.loop(*bounds, 1, sums) as loop:
            walk = _Walk(loop.index, builder.add(first, builder.mul(loop.index, stride)), loop.carried)
            yield walk
            loop.yielded = tuple(walk.sums)
        walk.sums = loop.results

    def _weights(self, row: SSAValue) -> SSAValue:
        buffer, zero = self.arguments[self.spec.weights].value, self.builder.index(0)
        if self.pairs:
            return self.builder.load(buffer, [row, zero, zero], [2, 1], (2, self.nr), [True, True])
        return self.builder.load(buffer, [row, zero], [-1, 1], (1, self.nr), [True, True])

    def _read(self, at: Step, number: int, first: int, height: int) -> SSAValue:
        """Pixels of the image that `height` results of row `number` of the register tile need, from the `first` on."""
        builder, window = self.builder, self.spec.window
        row, x = builder.add(at.row, builder.index(number)), builder.add(at.tile.x, builder.index(first))
        down = builder.add(
            builder.mul(row, builder.index(window.stride[0])), builder.mul(at.kh, builder.index(window.dilation[0]))
        )
        column = builder.mul(at.kw, builder.index(window.dilation[1]))
        shape = (height, self.k_step)
        if self.staged is not None:
            place = builder.add(builder.mul(x, builder.index(window.stride[1])), column)
            return self.staged.read(at.block, down, place, at.channel, shape)
        h = builder.add(builder.mul(at.block.y, builder.index(window.stride[0])), down)
        position = {"h": h, "x": builder.add(at.block.x, x), "w": column, "c": at.channel}
        writer = self._writer({"x": height, "c": self.k_step}, position, {"x": at.tile.inside, "c": True})
        writer.any_outside = True
        return writer.write(self.image, shape)

    def _epilogue(self, total: SSAValue, y: SSAValue, x: SSAValue, channel: SSAValue, tile: RowTile) -> None:
        at = {"y": y, "x": x, "n": channel}
        writer = self._writer({"x": tile.height, "n": self.nr}, at, {"x": tile.inside, "n": False})
        writer.define(self.spec.accumulator, total)
        where = {**{axis: self.at[axis] for axis in self.spec.batch}, **at}
        for output in self.spec.outputs:
            axes = self.spec.arguments[output.argument].axes
            self.builder.store(
                writer.write(output.value, (tile.height, self.nr)),
                self.arguments[output.argument].value,
                [where[axis] for axis in axes],
                [axes.index("x"), axes.index("n")],
                [tile.inside, False],
            )


@dataclass(frozen=True)
class Step:
    """Where a register tile's sums are: the tile's first row in its block, the element of the window, the first of the
    channels, and the row of the packed weights.
    """

    block: ImageBlock
    row: SSAValue
    tile: RowTile
    kh: SSAValue
    kw: SSAValue
    channel: SSAValue
    weights: SSAValue


@dataclass
class _Walk:
    """A walk along one side of the window: where it is, the row of the weights there, and the sums so far."""

    index: SSAValue
    row: SSAValue
    sums: Sequence[SSAValue]
