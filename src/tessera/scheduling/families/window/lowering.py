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

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.scheduling.families.window.buffer import RowBuffer
from tessera.scheduling.families.window.ranges import Ranges
from tessera.scheduling.families.window.tiles import RegisterTiles
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.ranges import Range
from tessera.scheduling.lowering.spec import WindowSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter


def lower_window(spec: WindowSpec, schedule: Schedule, lanes: int) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `window/space.py`); `lanes`: a vector's width in fp32."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _WindowLowering(spec, schedule, lanes, TileBuilder(block), arguments).lower()
    return module


class _WindowLowering(LoopNest):
    def __init__(
        self,
        spec: WindowSpec,
        schedule: Schedule,
        lanes: int,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(builder, arguments)
        self.spec, self.schedule = spec, schedule
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
        axes = (*grid, "x", spec.lanes, "h", "w")
        self.extents = {axis: self.extent(axis) for axis in axes}
        split = grid.index("y") if self.schedule["parallel"] == "rows" else 0
        with self.shares({axis: self.extents[axis] for axis in grid}, heights, split) as share:
            sizes = {spec.rows: 1, spec.lanes: self.width}
            scopes = TileWriter(builder, self.arguments, sizes, Scope(frozenset(), 0))
            self.registers = RegisterTiles(
                spec, self.schedule, self.width, builder, self.arguments, self.extents, scopes
            )
            with self.over([axis for axis in grid if axis != "y"], share, scopes):
                self._rows(share["y"])

    def _rows(self, share: Range) -> None:
        if self.lane_is_column:
            with self.registers.hoisted(self.spec.rows, self.spec.lanes):
                for rows, lanes in self._blocks(share):
                    self._columns_along_lanes(rows, lanes)
        elif self.registers.buffer is not None:
            self._buffered(self.registers.buffer, share)
        else:
            self._channels_along_lanes(share)

    def _blocks(self, share: Range) -> Iterator[tuple[Range, Range]]:
        """Blocks of rows and lanes, one after the other."""
        whole = self.builder.index(0), self.extents[self.spec.lanes]
        for rows in self.parts(share, self.block_rows):
            for lanes in self.parts(whole, self.block_lanes, macro_tile=True):
                yield rows, lanes

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
            with self.registers.writer.inside({"x": x}, {"x": lanes_inside}):
                for y, whole in self._steps(self._inside(0, rows, self.rows), rows, self.rows):
                    with self.registers.at(y=y):
                        self.registers.write((self.rows, 1), whole, True, whole, lanes_inside)

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
        for strip in self.parts(share, self.rows):
            with self.registers.at(y=strip[0]):
                # A strip that is no whole one inside the image has no whole tiles: all its columns are left out.
                none = builder.mul(self._missing(strip[0], share[1]), self.extents["x"])
                for columns, lanes in self._blocks((builder.index(0), self.extents["x"])):
                    inner = self._inside(1, columns, self.columns, none)
                    whole = self.ranges.whole_steps(lanes, self.width)
                    for lanes_inside, steps in ((True, whole), (False, (whole[1], lanes[1]))):
                        self._block(columns, inner, steps, lanes_inside, strip)

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
            self.registers.write((self.rows, self.columns), True, True, True, lanes_inside)
        with (
            self.ranges.around(columns, inner, self.columns) as column,
            self._lanes(column, lanes, lanes_inside),
            self.builder.loop(*strip, 1) as row,
            self.registers.at(y=row.index),
        ):
            self.registers.write((1, self.columns), False, False, False, lanes_inside)

    @contextmanager
    def _lanes(self, x: SSAValue, lanes: Range, inside: bool) -> Iterator[None]:
        with (
            self.builder.loop(*lanes, self.width) as loop,
            self.registers.writer.inside({self.spec.lanes: loop.index}, {self.spec.lanes: inside}),
            self.registers.at(x=x),
        ):
            yield

    # -- channels along lanes, through scratch memory -------------------------------------------------------------

    def _buffered(self, buffer: RowBuffer, share: Range) -> None:
        """Blocks of channels and columns, down all rows: strips whose rows of the image lie in scratch memory."""
        builder, zero = self.builder, self.builder.index(0)
        whole = self.ranges.whole_steps((zero, self.extents[self.spec.lanes]), self.block_lanes)
        for inside, lanes in ((True, whole), (False, (whole[1], self.extents[self.spec.lanes]))):
            with builder.loop(*lanes, self.block_lanes) as channels:
                for columns in self.parts((zero, self.extents["x"]), self.block_rows, macro_tile=True):
                    with buffer.strips(share, columns, channels.index, inside) as y:
                        last = builder.add(channels.index, builder.index(self.block_lanes))
                        with self.registers.at(y=y):
                            self._strip(columns, (channels.index, last), inside, share[1])

    def _strip(self, columns: Range, lanes: Range, lanes_inside: bool, end: SSAValue) -> None:
        """The register tiles of a strip, vector after vector of channels: whole ones, then those that are not."""
        builder, axis = self.builder, self.spec.lanes
        height = builder.add(self.registers.origin["y"], builder.index(self.rows))
        missing = builder.maximum(builder.sub(height, end), builder.index(0))
        less = builder.mul(missing, self.extents["x"])
        inner = self.ranges.whole_steps(columns, self.columns, None, builder.sub(columns[1], less))
        shape = self.rows, self.columns
        with (
            builder.loop(*lanes, self.width) as lane,
            self.registers.writer.inside({axis: lane.index}, {axis: lanes_inside}),
            self.registers.hoisted("y", "x"),
        ):
            if lanes_inside:
                with builder.loop(*inner, self.columns) as x, self.registers.at(x=x.index):
                    self.registers.write(shape, True, True, True, True)
            with (
                builder.loop(inner[1] if lanes_inside else columns[0], columns[1], self.columns) as x,
                self.registers.at(x=x.index),
            ):
                self.registers.write(shape, True, True, False, lanes_inside, end)
