"""One register tile of a reduction over windows: what it loads, what it adds up, and what it stores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat, FloatAttr
from xdsl.ir import SSAValue

from tessera.dtypes import fp8_e4m3
from tessera.errors import CompileError
from tessera.ir.tile.float8_formats import FP8_E4M3
from tessera.scheduling.families.rows.lowering import combine, identity
from tessera.scheduling.families.window.buffer import RowBuffer
from tessera.scheduling.families.window.ranges import Ranges
from tessera.scheduling.families.window.taps import Tap, TapOperands
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import float_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import WindowSpec
from tessera.scheduling.lowering.writer import ArgumentTile, TileWriter

FP8_E4M3_LARGEST: Final = FP8_E4M3.bound
"""What rounding makes of infinity."""

Place: TypeAlias = tuple[int, int]
"""A row and a column: of a result in its register tile, or of the image relative to the tile's first window."""
Sums: TypeAlias = dict[tuple[Value, Place], SSAValue]
"""The partial result of each reduction for each vector of a register tile."""
Read: TypeAlias = tuple[Place, list[tuple[Place, Tap]]]
"""A place of the image, and the results and taps that use the vector there."""


class RegisterTiles:
    """Writes register tiles: `at` says where the first result lies, the writer's scopes where the lanes and the rest.

    `extents` are those of the image's axes h and w, and x of the result.
    """

    def __init__(
        self,
        spec: WindowSpec,
        schedule: Schedule,
        width: int,
        builder: TileBuilder,
        arguments: Mapping[int, ArgumentTile],
        extents: Mapping[str, SSAValue],
        writer: TileWriter,
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.geometry, self.extents, self.writer = spec.geometry, extents, writer
        self.width, self.lane_is_column = width, spec.lanes == "x"
        self.ahead = schedule.integer("pipeline_depth") - 1
        self.nontemporal = bool(schedule["nontemporal"])
        roots = [output.value for output in spec.outputs]
        self.reductions = [value for value in post_order(roots) if value.is_reduction]
        self.window = _window_value(self.reductions, spec)
        self.operands = TapOperands(self.reductions, self.window)
        self.fill = _fill(self.reductions, self.window)
        self.ranges = Ranges(builder)
        self.origin: dict[str, SSAValue] = {}
        self.held = self.operands.own[0] if len(self.operands.own) == 1 else self.window
        self.buffer: RowBuffer | None = None
        if schedule["buffering"] == "rows":
            self.buffer = RowBuffer(schedule, spec.geometry, width, builder, self.held.dtype, self, extents)

    @contextmanager
    def at(self, **origin: SSAValue) -> Iterator[None]:
        """The row y, or the column x, of the first result of tiles. Not a scope: each result has a place of its own."""
        before = self.origin
        self.origin = {**before, **origin}
        yield
        self.origin = before

    @contextmanager
    def hoisted(self, *inner: str) -> Iterator[None]:
        """Writes here what varies from tap to tap, and along none of the axes of loops further in."""
        for value in self.operands.free:
            if value.axes.isdisjoint(inner):
                for tap in self.geometry.taps:
                    with self.writer.inside(self._tap_position(tap), {}):
                        self.operands.written[value, tap] = self.writer.write(value)
        yield
        self.operands.written.clear()

    def _tap_position(self, tap: Tap) -> dict[str, SSAValue]:
        return {"ky": self.builder.index(tap[0]), "kx": self.builder.index(tap[1])}

    def write(
        self,
        shape: Place,
        image_rows_inside: bool,
        columns_inside: bool,
        results_inside: bool,
        lanes_inside: bool,
        end: SSAValue | None = None,
    ) -> None:
        """A tile of `shape` rows and columns of vectors: loads, sums, results.

        Without `image_rows_inside` rows of the image are tested one by one; without `columns_inside` columns are, or
        where lanes go along these, masked. Without `results_inside` results along the axis of rows that do not exist
        are computed and dropped; where the tile ends a worker's share, they are another's, who writes the same. So are
        those of rows from `end` on.
        """
        places = list(itertools.product(range(shape[0]), range(shape[1])))
        reads, inside = self._reads(places), (columns_inside, lanes_inside)
        if image_rows_inside and results_inside and lanes_inside:
            self._fetch_ahead(shape)
        kept, sums = dict(self.operands.written), Sums()
        if image_rows_inside:
            self._add_up(reads, inside, sums)
        else:
            for reduction, place in itertools.product(self.reductions, places):
                neutral = identity(reduction.kind, reduction.dtype)
                sums[reduction, place] = self.builder.splat(neutral, reduction.dtype, (1, self.width))
            for _, group in itertools.groupby(reads, key=lambda read: read[0][0]):
                self._add_up_if_inside(list(group), inside, sums)
        self.operands.written = kept
        self._store(places, sums, results_inside, lanes_inside, end)

    # -- loads ----------------------------------------------------------------------------------------------------

    def _reads(self, places: Sequence[Place]) -> list[Read]:
        """The places of the image that the results need, and the results and taps that use each, taps in order."""
        geometry = self.geometry
        users: dict[Place, list[tuple[Place, Tap]]] = {}
        for place in places:
            for tap in geometry.taps:
                row, column = (place[d] * geometry.stride[d] + tap[d] * geometry.dilation[d] for d in (0, 1))
                users.setdefault((row, column), []).append((place, tap))
        return sorted(users.items())

    def _pixel(self, place: Place) -> dict[str, SSAValue]:
        """The image's row and column at a place relative to the first window."""
        builder, geometry, pixel = self.builder, self.geometry, {}
        for side, (image, axis) in enumerate((("h", "y"), ("w", "x"))):
            first = self.origin[axis] if axis in self.origin else self.writer.position(axis)
            start = builder.mul(first, builder.index(geometry.stride[side]))
            pixel[image] = builder.add(start, builder.index(place[side] - geometry.padding[side]))
        return pixel

    def _indices(self, pixel: Mapping[str, SSAValue]) -> list[SSAValue]:
        axes = self.spec.arguments[self.window.argument].axes
        return [pixel[axis] if axis in pixel else self.writer.position(axis) for axis in axes]

    def read(self, pixel: Mapping[str, SSAValue], lane: SSAValue, lanes_inside: bool) -> SSAValue:
        """The vector from channel `lane` on of a pixel inside the image, as the ring of rows holds it."""
        with self.writer.inside({self.spec.lanes: lane}, {}):
            self.writer.define(self.window, self._load(pixel, (True, lanes_inside)))
            return self.writer.write(self.held, (1, self.width))

    def outside(self) -> SSAValue:
        """What the ring holds of places outside the image."""
        with self.writer.inside({}, {}):
            self.writer.define(self.window, self._outside())
            return self.writer.write(self.held, (1, self.width))

    def _load(self, pixel: Mapping[str, SSAValue], inside: tuple[bool, bool]) -> SSAValue:
        axes = self.spec.arguments[self.window.argument].axes
        row_axis, lane_axis = ("h", "w") if self.lane_is_column else ("w", self.spec.lanes)
        return self.builder.load(
            self.arguments[self.window.argument].value,
            self._indices(pixel),
            [axes.index(row_axis), axes.index(lane_axis)],
            (1, self.width),
            inside,
            fill=self.fill,
            steps=[1, self.geometry.stride[1] if self.lane_is_column else 1],
        )

    def _outside(self) -> SSAValue:
        number = self.fill.value.data if isinstance(self.fill, FloatAttr) else 0
        return self.builder.splat(number, self.window.dtype, (1, self.width))

    def _fetch_ahead(self, shape: Place) -> None:
        """Asks for what of the image comes into the window some tiles later: whole rows, or where lanes are channels
        the columns on the right, of those rows that no tile before has read.
        """
        if not self.ahead:
            return
        rows, columns = (count * step for count, step in zip(shape, self.geometry.stride, strict=True))
        new = [self.geometry.reach(0) + 1 - self.geometry.stride[0] + number for number in range(rows)]
        if self.lane_is_column or self.buffer is not None:
            later = [self.ahead * rows + row for row in new]
            width = self.width * (self.geometry.stride[1] if self.lane_is_column else 1)
            places = [(row, column) for row in later for column in range(1 if self.lane_is_column else columns)]
        else:
            first = (self.ahead - 1) * columns + self.geometry.reach(1) + 1
            places = [(row, first + column) for row in new for column in range(columns)]
            width = self.width
        buffer = self.arguments[self.window.argument].value
        for place in places:
            self.builder.prefetch(buffer, self._indices(self._pixel(place)), 1, width, write=False)

    # -- sums -----------------------------------------------------------------------------------------------------

    def _add_up(self, reads: Sequence[Read], inside: tuple[bool, bool] | None, sums: Sums) -> None:
        """Reads vectors of the image, or where `inside` is None what lies outside it, and adds them up."""
        for place, users in reads:
            with self.writer.inside({}, {}):
                if self.buffer is not None:
                    x, lane = self.origin["x"], self.writer.position(self.spec.lanes)
                    self.writer.define(self.held, self.buffer.load(place, x, lane))
                elif inside is None:
                    self.writer.define(self.window, self._outside())
                else:
                    self.writer.define(self.window, self._load(self._pixel(place), inside))
                own = {value: self.writer.write(value, (1, self.width)) for value in self.operands.own}
            for result, tap in users:
                self._accumulate(result, tap, own, sums)

    def _add_up_if_inside(self, reads: Sequence[Read], inside: tuple[bool, bool], sums: Sums) -> None:
        """As `_add_up` for reads of one row of the image, which may lie outside it."""

        def arm(flags: tuple[bool, bool] | None) -> list[SSAValue]:
            added, kept = dict(sums), dict(self.operands.written)
            self._add_up(reads, flags, added)
            self.operands.written = kept
            return list(added.values())

        condition = self.ranges.within(self._pixel(reads[0][0])["h"], self.extents["h"])
        results = self.builder.branch(condition, lambda: arm(inside), lambda: arm(None))
        sums.update(zip(list(sums), results, strict=True))

    def _accumulate(self, place: Place, tap: Tap, own: Mapping[Value, SSAValue], sums: Sums) -> None:
        """Adds what one input vector is worth to one result through one tap."""
        builder, writer, shape = self.builder, self.writer, (1, self.width)
        with self.writer.inside({**self._tap_position(tap), **self._result(place)}, {}):
            for value, written in own.items():
                writer.define(value, written)
            for value in self.operands.free:
                if (value, tap) not in self.operands.written:
                    self.operands.written[value, tap] = writer.write(value)
                writer.define(value, self.operands.written[value, tap])
            for reduction in self.reductions:
                (term,) = reduction.arguments
                total = sums.get((reduction, place))
                fused = reduction.kind == "add" and term.operation == "mul" and term.dtype.kind == "float"
                if total is not None and fused and not writer.find(term, shape):
                    factors = [writer.write(factor, shape) for factor in term.arguments]
                    sums[reduction, place] = builder.append(
                        math_dialect.FmaOp.create(operands=[*factors, total], result_types=[total.type])
                    )
                    continue
                written = writer.write(term, shape)
                sums[reduction, place] = (
                    written if total is None else builder.append(combine(reduction, total, written))
                )

    # -- results --------------------------------------------------------------------------------------------------

    def _result(self, place: Place) -> dict[str, SSAValue]:
        """The position of one result of a tile, along the axes of which the tile has several."""
        numbers = {"y": place[0], "x": place[1]}
        return {axis: self.builder.add(first, self.builder.index(numbers[axis])) for axis, first in self.origin.items()}

    def _dropped(self, position: dict[str, SSAValue], end: SSAValue) -> dict[str, SSAValue]:
        """A position whose column lies outside the result if its row is not before `end`; the row is a valid one."""
        builder = self.builder
        beyond = builder.maximum(builder.sub(position["y"], builder.add(end, builder.index(-1))), builder.index(0))
        far = builder.mul(beyond, self.extents["x"])
        return {"y": builder.sub(position["y"], beyond), "x": builder.add(position["x"], far)}

    def _store(
        self, places: Sequence[Place], sums: Sums, inside: bool, lanes_inside: bool, end: SSAValue | None
    ) -> None:
        """Stores the results, one after the other when all of them are known: non-temporal stores share one test."""
        spec, builder, writer = self.spec, self.builder, self.writer
        stores = []
        for place in places:
            position = self._result(place)
            with self.writer.inside(position if end is None else self._dropped(position, end), {spec.rows: inside}):
                for reduction in self.reductions:
                    writer.define(reduction, sums[reduction, place])
                for output in spec.outputs:
                    value = writer.write(output.value, (1, self.width))
                    axes = spec.arguments[output.argument].axes
                    stores.append((output.argument, axes, value, [writer.position(axis) for axis in axes]))
        for argument, axes, value, indices in stores:
            builder.store(
                value,
                self.arguments[argument].value,
                indices,
                [axes.index(spec.rows), axes.index(spec.lanes)],
                [inside, lanes_inside],
                nontemporal=self.nontemporal and inside and lanes_inside,
            )


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
