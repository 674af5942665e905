"""Lowering window kernels for CPUs: depthwise convolution, pooling, and what else reduces over a sliding window.

    for each outer index (images and channels, or images), each block of `tile`
        for each register tile of `rows` x `columns` vectors
            every vector of the image is loaded once, and goes into all the sums that it belongs to

Images whose columns lie side by side (NCHW) have output columns as lanes: a register tile has several rows of one or
several vectors. Images whose channels do (NHWC) have channels as lanes: a register tile has several rows and columns of
one vector of channels. As the vectors of such a tile lie powers of two apart, in few sets of the first cache, each is
read only once, whatever stays in that cache; all channels of its pixels follow before the next tile, in long runs.

Where the windows of a tile lie inside the image, which is nearly everywhere, loads have no masks. Elsewhere rows of the
image that are not there are left out by a branch, columns by a mask; both read as `fill`. No image is copied for the
sake of its padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.scheduling.families.window.buffer import RowBuffer
from tessera.scheduling.families.window.ranges import Range, Ranges
from tessera.scheduling.families.window.tiles import RegisterTiles
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import WindowSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter, extent_of


def lower_window(spec: WindowSpec, schedule: Schedule, lanes: int) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `window/space.py`); `lanes`: a vector's width in fp32."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _WindowLowering(spec, schedule, lanes, TileBuilder(block), arguments).lower()
    return module


class _WindowLowering:
    def __init__(
        self,
        spec: WindowSpec,
        schedule: Schedule,
        lanes: int,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        self.spec, self.schedule, self.builder, self.arguments = spec, schedule, builder, arguments
        self.geometry = spec.geometry
        self.block_rows, self.block_lanes = schedule.integers("tile")
        self.rows, self.columns = schedule.integer("rows"), schedule.integer("columns")
        self.lane_is_column = spec.lanes == "x"
        self.width = schedule.integer("vectorize") * lanes
        self.ranges = Ranges(builder)

    # -- the nest of loops ----------------------------------------------------------------------------------------

    def lower(self) -> None:
        """Writes the kernel."""
        spec, builder = self.spec, self.builder
        grid = [*spec.outer, *(["y"] if self.lane_is_column else [])]
        heights = {"y": self.block_rows if self.lane_is_column else self.rows}
        steps = [heights.get(axis, 1) for axis in grid]
        axes = (*grid, "x", spec.lanes, "h", "w")
        self.extents = {axis: extent_of(builder, self.arguments.values(), axis) for axis in axes}
        split = grid.index("y") if self.schedule["parallel"] == "rows" else 0
        with builder.parallel([self.extents[axis] for axis in grid], steps, split) as bounds:
            sizes = {spec.rows: 1, spec.lanes: self.width}
            writer = TileWriter(builder, self.arguments, sizes, Scope(frozenset(), 0))
            self.tiles = RegisterTiles(spec, self.schedule, self.width, builder, self.arguments, self.extents, writer)
            self._outer([axis for axis in grid if axis != "y"], dict(zip(grid, bounds, strict=True)))

    def _outer(self, axes: list[str], bounds: Mapping[str, Range]) -> None:
        if axes:
            axis, *rest = axes
            with self.builder.loop(*bounds[axis], 1) as loop, self.tiles.writer.inside({axis: loop.index}, {}):
                self._outer(rest, bounds)
        elif self.lane_is_column:
            with self.tiles.hoisted(self.spec.rows, self.spec.lanes):
                for rows, lanes in self._blocks(bounds["y"]):
                    self._columns_along_lanes(rows, lanes)
        elif self.tiles.buffer is not None:
            self._buffered(self.tiles.buffer, bounds["y"])
        else:
            self._channels_along_lanes(bounds["y"])

    def _blocks(self, share: Range) -> Iterator[tuple[Range, Range]]:
        """Blocks of rows and lanes, one after the other."""
        builder = self.builder
        with builder.loop(*share, self.block_rows) as rows:
            last_row = builder.minimum(builder.add(rows.index, builder.index(self.block_rows)), share[1])
            last_lane = self.extents[self.spec.lanes]
            with builder.loop(builder.index(0), last_lane, self.block_lanes, macro_tile=True) as lanes:
                end = builder.minimum(builder.add(lanes.index, builder.index(self.block_lanes)), last_lane)
                yield (rows.index, last_row), (lanes.index, end)

    def _inside(self, dimension: int, share: Range, step: int, less: SSAValue | None = None) -> Range:
        """The whole steps of a share of output rows (dimension 0) or columns (1) that read nothing outside; `less` of
        the last ones are left out.
        """
        geometry, builder = self.geometry, self.builder
        first = builder.index(-(-geometry.padding[dimension] // geometry.stride[dimension]))
        slack = builder.index(geometry.padding[dimension] - geometry.reach(dimension) - 1)
        room = builder.add(self.extents["hw"[dimension]], slack)
        end = self.ranges.floor_steps(room, geometry.stride[dimension])
        return self.ranges.whole_steps(share, step, first, end if less is None else builder.sub(end, less))

    # -- columns along lanes --------------------------------------------------------------------------------------

    def _columns_along_lanes(self, rows: Range, lanes: Range) -> None:
        """The register tiles of a block: down rows, whose vectors lie far apart, from lanes to lanes."""
        for x, lanes_inside in self._steps(self._inside(1, lanes, self.width), lanes, self.width):
            with self.tiles.writer.inside({"x": x}, {"x": lanes_inside}):
                for y, whole in self._steps(self._inside(0, rows, self.rows), rows, self.rows):
                    with self.tiles.at(y=y):
                        self.tiles.write((self.rows, 1), whole, True, whole, lanes_inside)

    def _steps(self, inner: Range, share: Range, step: int) -> Iterator[tuple[SSAValue, bool]]:
        """A loop over the whole steps of a share, then one over the others: index, and whether the step is whole."""
        with self.builder.loop(*inner, step) as loop:
            yield loop.index, True
        with self.ranges.around(share, inner, step) as index:
            yield index, False

    # -- channels along lanes -------------------------------------------------------------------------------------

    def _channels_along_lanes(self, share: Range) -> None:
        """Strips of output rows, and blocks of columns and channels in each."""
        builder = self.builder
        with builder.loop(*share, self.rows) as strip, self.tiles.at(y=strip.index):
            end = builder.minimum(builder.add(strip.index, builder.index(self.rows)), share[1])
            # A strip that is no whole one inside the image has no whole tiles: all its columns are left out.
            none = builder.mul(self._missing(strip.index, share[1]), self.extents["x"])
            for columns, lanes in self._blocks((builder.index(0), self.extents["x"])):
                inner = self._inside(1, columns, self.columns, none)
                whole = self.ranges.whole_steps(lanes, self.width)
                for lanes_inside, steps in ((True, whole), (False, (whole[1], lanes[1]))):
                    self._block(columns, inner, steps, lanes_inside, (strip.index, end))

    def _missing(self, y: SSAValue, end: SSAValue) -> SSAValue:
        """How many rows of a strip, and of the image below its windows, do not exist."""
        builder, zero, stride = self.builder, self.builder.index(0), self.geometry.stride[0]
        first = builder.add(builder.mul(y, builder.index(stride)), builder.index(-self.geometry.padding[0]))
        reach = (self.rows - 1) * stride + self.geometry.reach(0) + 1
        gaps = (
            builder.sub(zero, first),
            builder.sub(builder.add(first, builder.index(reach)), self.extents["h"]),
            builder.sub(builder.add(y, builder.index(self.rows)), end),
        )
        above, below, results = (builder.maximum(gap, zero) for gap in gaps)
        return builder.add(builder.add(above, below), results)

    def _block(self, columns: Range, inner: Range, lanes: Range, lanes_inside: bool, strip: Range) -> None:
        """The register tiles of a block, all channels of a pixel before the next ones; where windows may leave the
        image they are of one row.
        """
        with self.builder.loop(*inner, self.columns) as x, self._lanes(x.index, lanes, lanes_inside):
            self.tiles.write((self.rows, self.columns), True, True, True, lanes_inside)
        with (
            self.ranges.around(columns, inner, self.columns) as column,
            self._lanes(column, lanes, lanes_inside),
            self.builder.loop(*strip, 1) as row,
            self.tiles.at(y=row.index),
        ):
            self.tiles.write((1, self.columns), False, False, False, lanes_inside)

    @contextmanager
    def _lanes(self, x: SSAValue, lanes: Range, inside: bool) -> Iterator[None]:
        with (
            self.builder.loop(*lanes, self.width) as loop,
            self.tiles.writer.inside({self.spec.lanes: loop.index}, {self.spec.lanes: inside}),
            self.tiles.at(x=x),
        ):
            yield

    # -- channels along lanes, through scratch memory -------------------------------------------------------------

    def _buffered(self, buffer: RowBuffer, share: Range) -> None:
        """Blocks of channels and columns, down all rows: strips whose rows of the image lie in scratch memory."""
        builder, zero = self.builder, self.builder.index(0)
        whole = self.ranges.whole_steps((zero, self.extents[self.spec.lanes]), self.block_lanes)
        for inside, lanes in ((True, whole), (False, (whole[1], self.extents[self.spec.lanes]))):
            with (
                builder.loop(*lanes, self.block_lanes) as channels,
                builder.loop(zero, self.extents["x"], self.block_rows, macro_tile=True) as columns,
            ):
                end = builder.minimum(builder.add(columns.index, builder.index(self.block_rows)), self.extents["x"])
                with buffer.strips(share, (columns.index, end), channels.index, inside) as y:
                    last = builder.add(channels.index, builder.index(self.block_lanes))
                    with self.tiles.at(y=y):
                        self._strip((columns.index, end), (channels.index, last), inside, share[1])

    def _strip(self, columns: Range, lanes: Range, lanes_inside: bool, end: SSAValue) -> None:
        """The register tiles of a strip, vector after vector of channels: whole ones, then those that are not."""
        builder, axis = self.builder, self.spec.lanes
        height = builder.add(self.tiles.origin["y"], builder.index(self.rows))
        missing = builder.maximum(builder.sub(height, end), builder.index(0))
        less = builder.mul(missing, self.extents["x"])
        inner = self.ranges.whole_steps(columns, self.columns, None, builder.sub(columns[1], less))
        shape = self.rows, self.columns
        with (
            builder.loop(*lanes, self.width) as lane,
            self.tiles.writer.inside({axis: lane.index}, {axis: lanes_inside}),
            self.tiles.hoisted("y", "x"),
        ):
            if lanes_inside:
                with builder.loop(*inner, self.columns) as x, self.tiles.at(x=x.index):
                    self.tiles.write(shape, True, True, True, True)
            with (
                builder.loop(inner[1] if lanes_inside else columns[0], columns[1], self.columns) as x,
                self.tiles.at(x=x.index),
            ):
                self.tiles.write(shape, True, True, False, lanes_inside, end)
