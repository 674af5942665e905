"""Lowering maps and reductions: elementwise kernels, row kernels (softmax, norms) and column reductions.

One worker takes whole rows (or lane blocks). Reductions split the work along the reduced axis into passes: pass `s`
computes the reductions whose operands have stage `s`; outputs are written in the pass of their stage. A value that
several passes need is computed again, unless it is dear and the schedule keeps it in scratch memory. The loops outside
of a row or a block of lanes are those of all kernels (`lowering/loop_nest.py`); walks along a row carry its reductions,
which no other kernel's loops over tiles do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue

from tessera.dtypes import DType
from tessera.ir.tile import operations as tile
from tessera.scheduling.families.rows.scratch import kept_values
from tessera.scheduling.families.rows.transposed import lower_transposed_map
from tessera.scheduling.language.expression import WALK, Value, post_order
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import Loop, TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile, LoopNest
from tessera.scheduling.lowering.ranges import summed_in_parts
from tessera.scheduling.lowering.spec import MapReduceSpec, Output, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter

_COMBINE_FLOAT: Mapping[str, Callable[[SSAValue, SSAValue], Operation]] = {
    "add": arith.AddfOp,
    "mul": arith.MulfOp,
    "max": arith.MaximumfOp,
    "min": arith.MinimumfOp,
}
_COMBINE_INTEGER: Mapping[str, Callable[[SSAValue, SSAValue], Operation]] = {
    "add": arith.AddiOp,
    "mul": arith.MuliOp,
    "max": arith.MaxSIOp,
    "min": arith.MinSIOp,
}


PART = 64
"""Steps along a row, or rows down a column, that are added one after another before their sum is added to that of so
many other parts, and that to the rest. Sums down columns have a level more, as a step is one row there.
"""


def identity(kind: str, dtype: DType) -> float | int:
    """The neutral element of a reduction."""
    if kind in ("add", "mul"):
        return 0 if kind == "add" else 1
    if dtype.kind == "float":
        return float("-inf") if kind == "max" else float("inf")
    if dtype.kind == "bool":
        return int(kind == "min")
    limit = 1 << (dtype.bits - 1)
    return -limit if kind == "max" else limit - 1


def combine(reduction: Value, a: SSAValue, b: SSAValue) -> Operation:
    """The operation that joins two partial results of a reduction."""
    table = _COMBINE_FLOAT if reduction.dtype.kind == "float" else _COMBINE_INTEGER
    return table[reduction.kind](a, b)


def lower_map_reduce(spec: MapReduceSpec, schedule: Schedule, lanes: int) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `rows/space.py`).

    Rests of a row are finished `lanes` at a time.
    """
    if schedule.integers("tile")[0] > 1:
        return lower_transposed_map(spec, schedule)
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    RowsLowering(spec, schedule, lanes, TileBuilder(block), arguments).lower()
    return module


class RowsLowering:
    """The lowering of one kernel."""

    def __init__(
        self,
        spec: MapReduceSpec,
        schedule: Schedule,
        lanes: int,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.nest = LoopNest(builder, arguments)
        self.lanes = lanes
        self.width = schedule.integers("tile")[1]
        self.split_lanes = schedule["parallel"] == "lanes"
        self.nontemporal = bool(schedule["nontemporal"])
        self.ahead = bool(schedule["ahead"] and spec.outer)
        self.by_rows = spec.reduced == spec.lanes
        keep = schedule.integer("keep")
        self.kept = kept_values(spec) if keep and self.by_rows else []
        self.scratch_columns = keep
        roots = [output.value for output in spec.outputs]
        self.reductions = [value for value in post_order(roots) if value.is_reduction]
        self.scratch: dict[Value, SSAValue] = {}

    # -- the worker grid ------------------------------------------------------------------------------------------

    def lower(self) -> None:
        spec, builder = self.spec, self.builder
        self.extents = {axis: self.nest.extent(axis) for axis in self._axes()}
        # One row in all: the grid has a single step, which some workers do not get.
        axes = [*spec.outer, *([] if self.by_rows else [spec.lanes])] or [""]
        grid = {axis: self.extents.get(axis) or builder.index(1) for axis in axes}
        split = len(grid) - 1 if self.split_lanes or len(grid) == 1 else 0
        with self.nest.shares(grid, {spec.lanes: self.width}, split) as share:
            kernel = Scope(frozenset(), 0)
            self.writer = TileWriter(builder, self.arguments, {"": 1, spec.lanes: 1}, kernel, self._reduced_extent)
            self.writer.enter({}, {})
            if not self.by_rows:
                with self.nest.over(spec.outer, share, self.writer):
                    for block in self.nest.tiles(share[spec.lanes], (self.width, self.lanes), macro_tile=True):
                        self._lane_block(block)
                return
            with self.nest.over(spec.outer or [""], share, self.writer, macro_tile=True):
                self.row()

    def _axes(self) -> list[str]:
        axes = (*self.spec.outer, self.spec.lanes, self.spec.reduced, self.spec.counted)
        return [axis for axis in dict.fromkeys(axes) if axis is not None]

    def _reduced_extent(self) -> SSAValue:
        counted = self.spec.counted or self.spec.reduced
        assert counted is not None
        return self.extents[counted]

    @contextmanager
    def _walk(
        self, lower: SSAValue, upper: SSAValue, step: int, reductions: Sequence[Value], neutral: Sequence[SSAValue]
    ) -> Iterator[Loop]:
        """A loop that carries the reductions. Sums of floats are formed in parts of parts."""
        builder = self.builder
        if not any(value.kind == "add" and value.dtype.kind == "float" for value in reductions):
            with builder.loop(lower, upper, step, neutral) as loop:
                yield loop
            return

        def join(totals: Sequence[SSAValue], parts: Sequence[SSAValue]) -> list[SSAValue]:
            return [self._combine(*each) for each in zip(reductions, totals, parts, strict=True)]

        parts = [step * PART**level for level in ((2, 1) if self.by_rows else (3, 2, 1))]
        with summed_in_parts(builder, (lower, upper), step, parts, neutral, join) as loop:
            yield loop

    # -- rows: the reduced axis is the lane axis ------------------------------------------------------------------

    def row(self) -> None:
        """Writes all passes along one row."""
        with self.writer.inside({WALK: self.builder.index(0)}, {}):
            self._walk_row()

    def _walk_row(self) -> None:
        for value in self.kept:
            kind = buffer_type(value.dtype, [self.scratch_columns, 1], [1, self.scratch_columns])
            if value not in self.scratch:
                from_entry = tile.AllocOp.create(result_types=[kind], attributes={"level": StringAttr("L1")})
                self.scratch[value] = self.builder.append(from_entry, 0)
        last = max((output.value.stage for output in self.spec.outputs), default=0)
        for stage in range(last + 1):
            self._row_pass(stage)

    def _row_pass(self, stage: int) -> None:
        """One walk along the row: reductions over stage `stage`, and outputs of that stage."""
        spec, builder = self.spec, self.builder
        reductions = [value for value in self.reductions if value.stage == stage + 1]
        outputs = [output for output in spec.outputs if output.value.stage == stage and self._walks(output, spec.lanes)]
        if reductions or outputs:
            whole = builder.mul(
                builder.floor_div(self.extents[spec.lanes], builder.index(self.width)), builder.index(self.width)
            )
            wide = self._row_loop(builder.index(0), whole, self.width, True, stage, reductions, outputs)
            rest = self._row_loop(whole, self.extents[spec.lanes], self.lanes, False, stage, reductions, outputs)
            self.writer.sizes[spec.lanes] = 1
            for value, a, b in zip(reductions, wide, rest, strict=True):
                kind = value.kind
                both = self._combine(value, builder.reduce(a, kind, 1), builder.reduce(b, kind, 1))
                self.writer.define(value, both)
        for output in spec.outputs:
            if output.value.stage == stage and not self._walks(output, spec.lanes):
                self.store(output.argument, output.value, {})

    def _row_loop(
        self,
        lower: SSAValue,
        upper: SSAValue,
        width: int,
        bounded: bool,
        stage: int,
        reductions: Sequence[Value],
        outputs: Sequence[Output],
    ) -> tuple[SSAValue, ...]:
        builder, spec, writer = self.builder, self.spec, self.writer
        writer.sizes[spec.lanes] = width
        neutral = [builder.splat(identity(value.kind, value.dtype), value.dtype, (1, width)) for value in reductions]
        with (
            self._walk(lower, upper, width, reductions if bounded else (), neutral) as loop,
            self.writer.inside({spec.lanes: loop.index}, {spec.lanes: bounded}),
        ):
            if self.ahead and bounded and stage == 1:
                self._fetch_next_row(loop.index, width)
            self._recall(stage, loop.index, width, bounded)
            sums = []
            for value, carried, start in zip(reductions, loop.carried, neutral, strict=True):
                element = writer.write(value.arguments[0], (1, width))
                if not bounded:
                    element = self._masked(element, start, loop.index, width, value.dtype)
                sums.append(self._combine(value, carried, element))
            self._keep(stage, loop.index, width, bounded)
            for output in spec.outputs:
                if output.value.stage == stage and self._walks(output, spec.lanes):
                    self.store(output.argument, output.value, {spec.lanes: bounded})
            loop.yielded = tuple(sums)
        return loop.results

    def _fetch_next_row(self, position: SSAValue, width: int) -> None:
        """Asks for what the row after this one reads here, so that memory works while this row is computed."""
        builder, axis = self.builder, self.spec.outer[-1]
        written = {output.argument for output in self.spec.outputs}
        for number, argument in enumerate(self.spec.arguments):
            if number not in written and argument.counted is None and {axis, self.spec.lanes} <= set(argument.axes):
                here = {name: self.writer.position(name) for name in argument.axes if name != axis}
                there = {**here, axis: builder.add(self.writer.position(axis), builder.index(1))}
                indices = [there[name] for name in argument.axes]
                builder.prefetch(self.arguments[number].value, indices, 1, width, write=False)

    def _masked(self, element: SSAValue, neutral: SSAValue, position: SSAValue, width: int, dtype: DType) -> SSAValue:
        builder = self.builder
        mask = builder.mask(position, self.extents[self.spec.lanes], (1, width), 1)
        return builder.append(tile.SelectOp.create(operands=[mask, element, neutral], result_types=[element.type]))

    def _recall(self, stage: int, position: SSAValue, width: int, bounded: bool) -> None:
        for value in self.kept:
            if value.stage < stage:
                row = self.builder.load(
                    self.scratch[value], [self.builder.index(0), position], [0, 1], (1, width), [True, True]
                )
                self.writer.define(value, row)

    def _keep(self, stage: int, position: SSAValue, width: int, bounded: bool) -> None:
        for value in self.kept:
            if value.stage == stage:
                row = self.writer.write(value, (1, width))
                self.builder.store(row, self.scratch[value], [self.builder.index(0), position], [0, 1], [True, True])

    def _combine(self, value: Value, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.append(combine(value, a, b))

    # -- lanes beside the reduced axis, and pure maps -------------------------------------------------------------

    def _lane_block(self, block: AxisTile) -> None:
        spec = self.spec
        self.writer.sizes[spec.lanes] = block.size
        with self.writer.inside({spec.lanes: block.start, WALK: block.start}, {spec.lanes: block.inside}):
            last = max((output.value.stage for output in spec.outputs), default=0)
            for stage in range(last + 1):
                self._column_pass(stage, block.inside)

    def _column_pass(self, stage: int, bounded: bool) -> None:
        spec, builder, writer = self.spec, self.builder, self.writer
        reductions = [value for value in self.reductions if value.stage == stage + 1]
        here = [output for output in spec.outputs if output.value.stage == stage]
        inside = [output for output in here if spec.reduced is not None and self._walks(output, spec.reduced)]
        if reductions or inside:
            assert spec.reduced is not None
            neutral = [
                builder.splat(identity(value.kind, value.dtype), value.dtype, writer.shape(value))
                for value in reductions
            ]
            upper = self.extents[spec.reduced]
            with (
                self._walk(builder.index(0), upper, 1, reductions, neutral) as loop,
                self.writer.inside({spec.reduced: loop.index}, {}),
            ):
                loop.yielded = tuple(
                    self._combine(value, carried, writer.write(value.arguments[0], writer.shape(value)))
                    for value, carried in zip(reductions, loop.carried, strict=True)
                )
                for output in inside:
                    self.store(output.argument, output.value, {spec.lanes: bounded})
            for value, result in zip(reductions, loop.results, strict=True):
                writer.define(value, result)
        for output in here:
            if output not in inside:
                self.store(output.argument, output.value, {spec.lanes: bounded})

    def _walks(self, output: Output, axis: str) -> bool:
        """Whether an output has elements along an axis; its value may be the same in all of them."""
        return axis in output.value.axes or axis in self.spec.arguments[output.argument].axes

    def store(self, index: int, value: Value, in_bounds: Mapping[str, bool]) -> None:
        """Stores a tile of the output that is argument `index`."""
        argument, writer = self.spec.arguments[index], self.writer
        shape = tuple(size if axis in argument.axes else 1 for axis, size in writer.sizes.items())
        written = writer.write(value, shape)
        dims = [argument.axes.index(axis) if axis in argument.axes else -1 for axis in writer.sizes]
        self.builder.store(
            written,
            self.arguments[index].value,
            [writer.position(axis) for axis in argument.axes],
            dims,
            [dim < 0 or in_bounds.get(axis, True) for dim, axis in zip(dims, writer.sizes, strict=True)],
            nontemporal=self.nontemporal and in_bounds.get(self.spec.lanes, False),
        )
