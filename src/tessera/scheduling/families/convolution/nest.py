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

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from xdsl.ir import SSAValue

from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.convolution.blocks import BlockSizes, packed_depth, pixel_stride
from tessera.scheduling.families.convolution.image import ImageBlock, PackedPixels, StagedImage
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile, LoopNest
from tessera.scheduling.lowering.microkernel.panels import PanelReader
from tessera.scheduling.lowering.microkernel.protocol import MicroKernel, Read, Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import VectorKernel
from tessera.scheduling.lowering.ranges import Range, ceil_div
from tessera.scheduling.lowering.spec import ConvolutionSpec
from tessera.scheduling.lowering.tails import over_row, row_tails
from tessera.scheduling.lowering.writer import ArgumentTile

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


class BlockedConvolution(LoopNest):
    """The nest, with register tiles of vectors."""

    def __init__(
        self,
        spec: ConvolutionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        # The result first: packed weights have rows and panels, not channels.
        super().__init__(builder, arguments, (arguments[spec.outputs[0].argument],))
        self.spec = spec
        self.pairs = pairs = HALF in spec.arguments[spec.weights].axes
        self.ry, self.mr, self.nr = schedule.integers("micro")
        self.kh, self.kw, self.channels = schedule.integers("window")
        self.unroll = schedule.integer("unroll")
        self.fetches = schedule.integer("pipeline_depth") >= 2
        self.heights = (self.mr, *row_tails(self.mr)) if schedule["tails"] else (self.mr,)
        self.split = str(schedule["parallel"])
        self.pixels_outer = schedule["order"] == "rows"
        self.element = bf16 if pairs else spec.accumulator.dtype
        self.step = 2 if pairs else 1
        self.depth = packed_depth(self.channels, self.step, has_unit="unit" in schedule)
        self.k_step = self.step
        self.weights = PanelReader(builder, arguments[spec.weights].value, self.step)
        self.image = spec.image.arguments[0] if pairs and spec.image.operation == "cast" else spec.image
        self.merge = bool(schedule["merge"])
        pixel = pixel_stride(self.depth, self.element.itemsize, self.merge)
        self.sizes = BlockSizes(builder, schedule, spec.window, pixel)
        self.staged: StagedImage | None = None
        if schedule["pack_a"]:
            packed = PackedPixels(self.element, self.depth, pixel)
            self.staged = StagedImage(spec, schedule, self, self.image, packed)

    # -- the nest -------------------------------------------------------------------------------------------------

    def lower(self) -> None:
        """Writes the kernel."""
        builder, batch = self.builder, self.spec.batch
        axes = (*batch, "y", "x", "n")
        self.extents = {axis: self.extent(axis) for axis in (*axes, "h", "w", "c")}
        steps = {"y": self.ry, "x": self.mr, "n": self.nr}
        place = {"batch": 0, "rows": len(batch), "pixels": len(axes) - 2, "columns": len(axes) - 1}[self.split]
        with self.shares({axis: self.extents[axis] for axis in axes}, steps, place) as share:
            (top, bottom), (left, right) = share["y"], share["x"]
            by, bx, line = self.sizes.of(builder.sub(bottom, top), builder.sub(right, left))
            with self.over(batch, share), ExitStack() as nest:
                y = nest.enter_context(self._blocks(top, bottom, by))
                x = nest.enter_context(self._blocks(left, right, bx, macro_tile=True))
                rows, columns = builder.minimum(by, builder.sub(bottom, y)), builder.minimum(bx, builder.sub(right, x))
                self._block(ImageBlock(y, x, rows, columns, line), share["n"])

    @contextmanager
    def _blocks(self, lower: SSAValue, upper: SSAValue, size: SSAValue, macro_tile: bool = False) -> Iterator[SSAValue]:
        """A loop over blocks along one side of the results, whose size the kernel finds: where each begins."""
        builder = self.builder
        count = ceil_div(builder, builder.sub(upper, lower), size)
        with builder.loop(builder.index(0), count, 1, macro_tile=macro_tile) as loop:
            yield builder.add(lower, builder.mul(loop.index, size))

    def _block(self, block: ImageBlock, channels: Range) -> None:
        builder = self.builder
        if self.staged is not None:
            self.staged.fill(block, self.extents["h"], self.extents["w"])
        if not self.pixels_outer:
            with builder.loop(*channels, self.nr) as panel:
                first = self._first_weight(panel.index)
                self._over_results(block, partial(self._tile, block, panel.index, first))
            return

        def panels(rows: int, row: SSAValue, tile: AxisTile) -> None:
            with builder.loop(*channels, self.nr) as panel:
                self._tile(block, panel.index, self._first_weight(panel.index), rows, row, tile)

        self._over_results(block, panels)

    def _over_results(self, block: ImageBlock, body: Callable[[int, SSAValue, AxisTile], None]) -> None:
        """Register tiles over a block: `body` gets how many rows, the first one, and what each is along the row."""
        rows = self.builder.index(0), block.rows
        for several in self.tiles(rows, (self.ry, 1) if self.ry > 1 else (1,)):
            over_row(self.builder, block.columns, self.heights, partial(body, several.size, several.start))

    # -- the register tile ----------------------------------------------------------------------------------------

    def _first_weight(self, channel: SSAValue) -> SSAValue:
        """The row of the packed weights at which the panel of a channel begins."""
        builder = self.builder
        panel = builder.floor_div(channel, builder.index(self.nr))
        if self.spec.groups is not None:
            panels = ceil_div(builder, self.extents["n"], builder.index(self.nr))
            panel = builder.add(builder.mul(self.at[self.spec.groups], panels), panel)
        return builder.mul(panel, builder.index(self.kh * self.kw * self.depth // self.step))

    def _kernel(self, rows: int, tile: AxisTile) -> MicroKernel:
        """What sums up a register tile of so many rows of results."""
        return VectorKernel(
            self.builder, tile.size, self.nr, self.step, self.element, self.spec.accumulator.dtype, rows
        )

    def _tile(
        self, block: ImageBlock, channel: SSAValue, first: SSAValue, rows: int, row: SSAValue, tile: AxisTile
    ) -> None:
        """Sums, and stores, a register tile of `rows` rows of results from `row` of the block on."""
        builder, kernel = self.builder, self._kernel(rows, tile)
        if self.fetches:
            self._fetch(block, channel, rows, row, tile)
        kw, depth = (1, self.kw * self.depth) if self.merge else (self.kw, self.depth)
        line, run = builder.index(kw * depth // self.step), builder.index(depth // self.step)
        with self._window(self.kh, self._rows_inside(block, row, rows), kernel.zeros(), first, line) as down:
            columns = builder.index(0), builder.index(kw)
            with self._window(kw, columns, down.sums, down.row, run) as across:

                def step(group: SSAValue, sums: Sums, whole: bool) -> Sums:
                    c = group if self.step == 1 else builder.mul(group, builder.index(self.step))
                    weights = builder.add(across.row, group)
                    at = WindowStep(block, row, tile, down.index, across.index, c, weights)
                    return kernel.step(partial(self._pixels, at), self._weights_at(at), sums)

                groups = self.k_step // self.step
                span = builder.index(0), run
                across.sums = summed(builder, span, groups, across.sums, step, self.unroll)
            down.sums = across.sums
        self._finish(kernel, down.sums, block, channel, rows, row, tile)

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
        """Stores the results of `rows` rows from `row` of the block on."""
        for number, total in enumerate(kernel.finish(sums)):
            x = self.builder.add(block.x, tile.start)
            self._epilogue(total, self._row_of(block, row, number), x, channel, tile)

    def _row_of(self, block: ImageBlock, row: SSAValue, number: int) -> SSAValue:
        builder = self.builder
        return builder.add(builder.add(block.y, row), builder.index(number))

    def _fetch(self, block: ImageBlock, channel: SSAValue, rows: int, row: SSAValue, tile: AxisTile) -> None:
        """Fetches the lines that a register tile will be stored to while it is summed."""
        builder, x = self.builder, self.builder.add(block.x, tile.start)
        for number in range(rows):
            at = {"y": self._row_of(block, row, number), "x": x, "n": channel}
            for output in self.spec.outputs:
                if self.spec.arguments[output.argument].axes[-2:] == ("x", "n"):
                    self.place(output.argument, ("x", "n"), at).fetch(builder, tile.size, self.nr)

    def _rows_inside(self, block: ImageBlock, row: SSAValue, rows: int) -> Range:
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
        bounds: Range,
        sums: Sums,
        first: SSAValue,
        stride: SSAValue,
    ) -> Iterator[_WindowWalk]:
        """A loop along one side of the window; none where it has one element."""
        builder = self.builder
        if extent == 1:
            yield _WindowWalk(builder.index(0), first, sums)
            return
        with builder.loop(*bounds, 1, sums) as loop:
            walk = _WindowWalk(loop.index, builder.add(first, builder.mul(loop.index, stride)), loop.carried)
            yield walk
            loop.yielded = tuple(walk.sums)
        walk.sums = loop.results

    def _weights_at(self, at: WindowStep) -> Read:
        """What reads the weights of a step, before all pixels."""
        weights = self.weights.rows([], at.weights, (self.step, self.nr))
        return lambda column: weights

    def _pixels(self, at: WindowStep, number: int) -> SSAValue:
        """The pixels of the image that the micro-kernel's part `number` needs: a row of the register tile."""
        return self._read(at, number, 0, at.tile.size)

    def _read(self, at: WindowStep, number: int, first: int, height: int) -> SSAValue:
        """Pixels of the image that `height` results of row `number` of the register tile need, from the `first` on."""
        builder, window = self.builder, self.spec.window
        row, x = builder.add(at.row, builder.index(number)), builder.add(at.tile.start, builder.index(first))
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
        writer = self.writer({"x": height, "c": self.k_step}, position, {"x": at.tile.inside, "c": True})
        writer.any_outside = True
        return writer.write(self.image, shape)

    def _epilogue(self, total: SSAValue, y: SSAValue, x: SSAValue, channel: SSAValue, tile: AxisTile) -> None:
        sizes, at = {"x": tile.size, "n": self.nr}, {"y": y, "x": x, "n": channel}
        self.store(self.spec.outputs, {self.spec.accumulator: total}, sizes, at, {"x": tile.inside})


@dataclass(frozen=True)
class WindowStep:
    """Where a register tile's sums are: the tile's first row in its block, the element of the window, the first of the
    channels, and the row of the packed weights.
    """

    block: ImageBlock
    row: SSAValue
    tile: AxisTile
    kh: SSAValue
    kw: SSAValue
    channel: SSAValue
    weights: SSAValue


@dataclass
class _WindowWalk:
    """A walk along one side of the window: where it is, the row of the weights there, and the sums so far."""

    index: SSAValue
    row: SSAValue
    sums: Sums
