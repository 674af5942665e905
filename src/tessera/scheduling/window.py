"""Lowering window kernels for CPUs: depthwise convolution, pooling, and what else reduces over a sliding window.

    for each outer index (image and channel; image and output row), each block of `tile` rows and lanes
        for each step of `vectorize` vectors of lanes and `rows` rows
            every vector of the image is loaded once, and goes into all the sums that it belongs to

Images whose columns lie side by side (NCHW) have output rows as rows and output columns as lanes; images whose channels
do (NHWC) have output columns as rows and channels as lanes. Where the windows of a step lie inside the image, which is
nearly everywhere, loads have no masks. Elsewhere rows of the image that are not there are left out by a branch, columns
by a mask; both read as `fill`. No image is copied for the sake of its padding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, FloatAttr, ModuleOp
from xdsl.ir import SSAValue

from tessera.dtypes import fp8_e4m3
from tessera.errors import CompileError
from tessera.scheduling.attributes import float_type
from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.expression import Value, post_order
from tessera.scheduling.mapreduce import combine, identity
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import WindowSpec, kernel_module
from tessera.scheduling.window_ranges import Range, Ranges
from tessera.scheduling.window_taps import Tap, TapOperands
from tessera.scheduling.writer import ArgumentTile, Scope, TileWriter, extent_of

FP8_E4M3_LARGEST: Final = 448.0
"""Micikevicius et al., "FP8 Formats for Deep Learning" (2022), table 1."""

Sums: TypeAlias = dict[tuple[Value, int], SSAValue]
"""The partial result of each reduction for each row of a register tile."""
Read: TypeAlias = tuple[tuple[int, int], list[tuple[int, Tap]]]
"""A distance from the first row's window, and the rows and taps that use the vector there."""


def lower_window(spec: WindowSpec, schedule: Schedule, lanes: int) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `window_space`); `lanes` is a vector's width in fp32."""
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
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.geometry = spec.geometry
        self.block_rows, self.block_lanes = schedule.integers("tile")
        self.rows = schedule.integer("rows")
        self.lane_is_column = spec.lanes == "x"
        self.width = schedule.integer("vectorize") * lanes
        self.ahead = schedule.integer("pipeline_depth") - 1
        self.nontemporal = bool(schedule["nontemporal"])
        self.by_rows = schedule["parallel"] == "rows"
        roots = [output.value for output in spec.outputs]
        self.reductions = [value for value in post_order(roots) if value.is_reduction]
        self.window = _window_value(self.reductions, spec)
        self.operands = TapOperands(self.reductions, self.window)
        self.fill = _fill(self.reductions, self.window)
        self.ranges = Ranges(builder)
        self.image_rows_inside = True
        self.reads = list(self._reads())

    def extent(self, axis: str) -> SSAValue:
        """The run-time extent of an axis."""
        return extent_of(self.builder, self.arguments.values(), axis)

    # -- the nest of loops ----------------------------------------------------------------------------------------

    def lower(self) -> None:
        """Writes the kernel."""
        spec, builder = self.spec, self.builder
        grid = [*spec.outer, *(["y"] if self.lane_is_column else [])]
        steps = [self.block_rows if axis == spec.rows else 1 for axis in grid]
        self.extents = {axis: self.extent(axis) for axis in (*grid, spec.rows, spec.lanes, "h", "w")}
        split = grid.index("y") if self.by_rows else 0
        with builder.parallel([self.extents[axis] for axis in grid], steps, split) as bounds:
            self.writer = TileWriter(builder, self.arguments, {spec.rows: 1, spec.lanes: self.width}, _kernel_scope())
            self._outer(0, dict(zip(grid, bounds, strict=True)))

    def _outer(self, level: int, bounds: Mapping[str, tuple[SSAValue, SSAValue]]) -> None:
        builder, spec = self.builder, self.spec
        if level < len(spec.outer):
            axis = spec.outer[level]
            with builder.loop(*bounds[axis], 1) as loop, self._scope({axis: loop.index}, {}):
                self._outer(level + 1, bounds)
            return
        if self.lane_is_column:
            with self._hoisted():
                self._blocks(*bounds["y"])
            return
        y, zero = self.writer.position("y"), builder.index(0)
        lowest = builder.mul(y, builder.index(self.geometry.stride[0]))
        lowest = builder.sub(lowest, builder.index(self.geometry.padding[0]))
        highest = builder.add(lowest, builder.index(self.geometry.reach(0)))
        inside = builder.both(builder.compare(lowest, zero, "sge"), builder.compare(highest, self.extents["h"], "slt"))
        for is_whole in (True, False):  # output rows whose windows leave the image have code of their own
            self.image_rows_inside = is_whole
            with self.ranges.when(inside if is_whole else self.ranges.negated(inside)):
                self._blocks(zero, self.extents[spec.rows])

    def _blocks(self, lower: SSAValue, upper: SSAValue) -> None:
        """Blocks of rows and lanes, one after the other."""
        builder = self.builder
        with builder.loop(lower, upper, self.block_rows) as rows:
            last_row = builder.minimum(builder.add(rows.index, builder.index(self.block_rows)), upper)
            last_lane = self.extents[self.spec.lanes]
            with builder.loop(builder.index(0), last_lane, self.block_lanes) as lanes:
                end = builder.minimum(builder.add(lanes.index, builder.index(self.block_lanes)), last_lane)
                self._block((rows.index, last_row), (lanes.index, end))

    def _block(self, rows: Range, lanes: Range) -> None:
        """The steps of a block: down rows, whose vectors lie far apart, from lanes to lanes; where lanes are
        channels the other way round: a pixel's are read in one go, and its neighbours fall on the same cache sets.
        """
        if self.lane_is_column:
            for position, bounded in self._steps(self._inside(1, lanes, self.width), lanes, self.width):
                with self._scope({self.spec.lanes: position}, {self.spec.lanes: bounded}):
                    for row, whole in self._steps(self._inside(0, rows, self.rows), rows, self.rows):
                        self.image_rows_inside = whole
                        self._tile(row, True, whole, bounded)
            return
        for row, whole in self._steps(self._inside(1, rows, self.rows), rows, self.rows):
            for position, bounded in self._steps(self.ranges.whole_steps(lanes, self.width), lanes, self.width):
                with self._scope({self.spec.lanes: position}, {self.spec.lanes: bounded}):
                    self._tile(row, whole, whole, bounded)

    def _steps(self, inner: Range, share: Range, step: int) -> Iterator[tuple[SSAValue, bool]]:
        """A loop over the whole steps of a share, then one over the others: index, and whether the step is whole."""
        with self.builder.loop(*inner, step) as loop:
            yield loop.index, True
        with self.ranges.around(share, inner, step) as index:
            yield index, False

    def _inside(self, dimension: int, share: tuple[SSAValue, SSAValue], step: int) -> tuple[SSAValue, SSAValue]:
        """The whole steps of a share of output rows (dimension 0) or columns (1) that read nothing outside."""
        geometry, builder = self.geometry, self.builder
        first = builder.index(-(-geometry.padding[dimension] // geometry.stride[dimension]))
        slack = builder.index(geometry.padding[dimension] - geometry.reach(dimension) - 1)
        room = builder.add(self.extents["hw"[dimension]], slack)
        end = self.ranges.floor_steps(room, geometry.stride[dimension])
        return self.ranges.whole_steps(share, step, first, end)

    @contextmanager
    def _scope(self, indices: Mapping[str, SSAValue], in_bounds: Mapping[str, bool]) -> Iterator[None]:
        self.writer.enter(indices, in_bounds)
        yield
        self.writer.leave()

    @contextmanager
    def _hoisted(self) -> Iterator[None]:
        """Writes here what varies from tap to tap, and along neither rows nor lanes."""
        for value in self.operands.free:
            if not value.axes & {self.spec.rows, self.spec.lanes}:
                for tap in self.geometry.taps:
                    with self._scope(self._tap_position(tap), {}):
                        self.operands.written[value, tap] = self.writer.write(value)
        yield
        self.operands.written.clear()

    def _tap_position(self, tap: Tap) -> dict[str, SSAValue]:
        return {"ky": self.builder.index(tap[0]), "kx": self.builder.index(tap[1])}

    # -- one register tile ----------------------------------------------------------------------------------------

    def _tile(self, row: SSAValue, columns_inside: bool, rows_whole: bool, lanes_inside: bool) -> None:
        """A register tile: loads, sums, results. Without `rows_whole` rows beyond the result are computed and dropped;
        where the tile ends a worker's share, they are another's, who writes the same.
        """
        sums: Sums = {}
        inside = columns_inside, lanes_inside
        if rows_whole and lanes_inside and self.image_rows_inside:
            self._fetch_ahead(row)
        kept = dict(self.operands.written)
        if self.image_rows_inside:
            self._add_up(row, self.reads, inside, sums)
        else:
            for reduction, number in itertools.product(self.reductions, range(self.rows)):
                neutral = identity(reduction.kind, reduction.dtype)
                sums[reduction, number] = self.builder.splat(neutral, reduction.dtype, (1, self.width))
            for _, group in itertools.groupby(self.reads, key=lambda read: read[0][0]):
                self._add_up_if_inside(row, list(group), inside, sums)
        self.operands.written = kept
        for number in range(self.rows):
            self._store(row, number, sums, rows_whole, lanes_inside)

    def _add_up(self, row: SSAValue, reads: Sequence[Read], inside: tuple[bool, bool] | None, sums: Sums) -> None:
        """Reads vectors of the image, or where `inside` is None what lies outside it, and adds them up."""
        for offsets, users in reads:
            loaded = self._outside() if inside is None else self._load(row, offsets, inside)
            with self._scope({}, {}):
                self.writer.define(self.window, loaded)
                own = {value: self.writer.write(value, (1, self.width)) for value in self.operands.own}
            for number, tap in users:
                self._accumulate(row, number, tap, own, sums)

    def _add_up_if_inside(self, row: SSAValue, reads: Sequence[Read], inside: tuple[bool, bool], sums: Sums) -> None:
        """As `_add_up` for reads of one row of the image, which may lie outside it."""

        def arm(flags: tuple[bool, bool] | None) -> list[SSAValue]:
            added, kept = dict(sums), dict(self.operands.written)
            self._add_up(row, reads, flags, added)
            self.operands.written = kept
            return list(added.values())

        image_row = self._place(row, reads[0][0])["h"]
        condition = self.ranges.within(image_row, self.extents["h"])
        results = self.builder.branch(condition, lambda: arm(inside), lambda: arm(None))
        sums.update(zip(list(sums), results, strict=True))

    def _outside(self) -> SSAValue:
        number = self.fill.value.data if isinstance(self.fill, FloatAttr) else 0
        return self.builder.splat(number, self.window.dtype, (1, self.width))

    def _reads(self) -> Iterator[Read]:
        """Input positions relative to the first row's window, and the (row, tap) pairs that use each, taps in order."""
        geometry = self.geometry
        dimension = 0 if self.lane_is_column else 1
        users: dict[tuple[int, int], list[tuple[int, Tap]]] = {}
        for number in range(self.rows):
            for tap in geometry.taps:
                place = [tap[axis] * geometry.dilation[axis] for axis in (0, 1)]
                place[dimension] += number * geometry.stride[dimension]
                users.setdefault((place[0], place[1]), []).append((number, tap))
        yield from sorted(users.items())

    def _place(self, row: SSAValue, offsets: tuple[int, int]) -> dict[str, SSAValue]:
        """The image's row and column at some distance from the window of an output row."""
        builder, geometry = self.builder, self.geometry
        place = {}
        for side, (image, axis) in enumerate((("h", "y"), ("w", "x"))):
            output = row if axis == self.spec.rows else self.writer.position(axis)
            start = builder.mul(output, builder.index(geometry.stride[side]))
            place[image] = builder.add(start, builder.index(offsets[side] - geometry.padding[side]))
        return place

    def _indices(self, place: Mapping[str, SSAValue]) -> list[SSAValue]:
        axes = self.spec.arguments[self.window.argument].axes
        return [place[axis] if axis in place else self.writer.position(axis) for axis in axes]

    def _load(self, row: SSAValue, offsets: tuple[int, int], inside: tuple[bool, bool]) -> SSAValue:
        axes = self.spec.arguments[self.window.argument].axes
        row_axis, lane_axis = ("h", "w") if self.lane_is_column else ("w", self.spec.lanes)
        return self.builder.load(
            self.arguments[self.window.argument].value,
            self._indices(self._place(row, offsets)),
            [axes.index(row_axis), axes.index(lane_axis)],
            (1, self.width),
            inside,
            fill=self.fill,
            steps=[1, self.geometry.stride[1] if self.lane_is_column else 1],
        )

    def _accumulate(
        self,
        row: SSAValue,
        number: int,
        tap: Tap,
        own: Mapping[Value, SSAValue],
        sums: Sums,
    ) -> None:
        """Adds what one input vector is worth to one row through one tap."""
        builder, writer, shape = self.builder, self.writer, (1, self.width)
        at = {**self._tap_position(tap), self.spec.rows: builder.add(row, builder.index(number))}
        with self._scope(at, {}):
            for value, written in own.items():
                writer.define(value, written)
            for value in self.operands.free:
                if (value, tap) not in self.operands.written:
                    self.operands.written[value, tap] = writer.write(value)
                writer.define(value, self.operands.written[value, tap])
            for reduction in self.reductions:
                (term,) = reduction.arguments
                total = sums.get((reduction, number))
                fused = reduction.kind == "add" and term.operation == "mul" and term.dtype.kind == "float"
                if total is not None and fused and not writer.find(term, shape):
                    factors = [writer.write(factor, shape) for factor in term.arguments]
                    sums[reduction, number] = builder.append(
                        math_dialect.FmaOp.create(operands=[*factors, total], result_types=[total.type])
                    )
                    continue
                written = writer.write(term, shape)
                sums[reduction, number] = (
                    written if total is None else builder.append(combine(reduction, total, written))
                )

    def _store(self, row: SSAValue, number: int, sums: Sums, row_inside: bool, lanes_inside: bool) -> None:
        spec, builder, writer = self.spec, self.builder, self.writer
        with self._scope({spec.rows: builder.add(row, builder.index(number))}, {spec.rows: row_inside}):
            for reduction in self.reductions:
                writer.define(reduction, sums[reduction, number])
            for output in spec.outputs:
                argument = spec.arguments[output.argument]
                builder.store(
                    writer.write(output.value, (1, self.width)),
                    self.arguments[output.argument].value,
                    [writer.position(axis) for axis in argument.axes],
                    [argument.axes.index(spec.rows), argument.axes.index(spec.lanes)],
                    [row_inside, lanes_inside],
                    nontemporal=self.nontemporal and row_inside and lanes_inside,
                )

    def _fetch_ahead(self, row: SSAValue) -> None:
        """Asks for the rows of the image that come into the window some steps later."""
        if not self.ahead:
            return
        builder, geometry = self.builder, self.geometry
        dimension = 0 if self.lane_is_column else 1
        step = self.rows * geometry.stride[dimension]
        columns = self.width * (geometry.stride[1] if self.lane_is_column else 1)
        for number in range(step):
            offsets = [0, 0]
            offsets[dimension] = self.ahead * step + number + geometry.reach(dimension)
            indices = self._indices(self._place(row, (offsets[0], offsets[1])))
            builder.prefetch(self.arguments[self.window.argument].value, indices, 1, columns, write=False)


def _kernel_scope() -> Scope:
    return Scope(frozenset(), 0)


def _window_value(reductions: Sequence[Value], spec: WindowSpec) -> Value:
    """The one operand that is read through the window."""
    found = {
        value for value in post_order(reductions) if value.operation == "load" and value.axes >= {"ky", "kx", "y", "x"}
    }
    if len(found) != 1:
        raise CompileError(f"kernel {spec.name}: {len(found)} operands are read through its window, not one")
    if any(reduction.stage != 1 for reduction in reductions):
        raise CompileError(f"kernel {spec.name}: a reduction over a window of what was reduced over it")
    return found.pop()


def _fill(reductions: Sequence[Value], window: Value) -> FloatAttr[AnyFloat] | None:
    """What lies outside the image: what changes no extremum, or 0."""
    kinds = {reduction.kind for reduction in reductions}
    if kinds not in ({"max"}, {"min"}) or window.dtype.kind != "float":
        return None
    number = float(identity(kinds.pop(), window.dtype))
    if window.dtype is fp8_e4m3:  # which has no infinities
        number = math.copysign(FP8_E4M3_LARGEST, number)
    return FloatAttr(number, float_type(window.dtype))
