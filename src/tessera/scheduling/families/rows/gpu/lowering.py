"""Lowering of maps and reductions for GPUs: one program of the grid owns a tile of rows and lanes.

A row kernel holds whole rows in its tile where they fit, several of them where they are short; longer rows are walked
block by block. A reduction along an axis outside the lanes takes several steps of that axis at once, and adds up the
lanes' sums when it has walked it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera.errors import ScheduleError
from tessera.ir.tile import operations as tile
from tessera.scheduling.families.rows.lowering import identity, lower_map_reduce
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import Grid, kernel_of, name_arguments, with_hints
from tessera.scheduling.lowering.spec import MapReduceSpec, Output, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter

LONGEST_ROW = 16_384
"""Columns up to which a row kernel holds its row in one tile: 128 registers of each of 128 threads, in fp32."""

_COMBINE: Mapping[str, tuple[Callable[..., Operation], Callable[..., Operation]]] = {
    "add": (arith.AddfOp, arith.AddiOp),
    "mul": (arith.MulfOp, arith.MuliOp),
    "max": (arith.MaximumfOp, arith.MaxSIOp),
    "min": (arith.MinimumfOp, arith.MinSIOp),
}
"""Kind of a reduction -> the operation that joins two partial results, of floats and of integers."""


def map_reduce_gpu_schedule(spec: MapReduceSpec, columns: int) -> Schedule:
    """A schedule of `spec` that any GPU can run, whose lane axis has at most `columns` elements.

    `gpu_rows_space.default_schedule` knows more: the extents and the GPU.
    """
    rounded = 1 << max(columns - 1, 0).bit_length()
    if spec.reduced == spec.lanes and rounded <= LONGEST_ROW:
        return Schedule(tile=(1, rounded), whole_row=True, warps=min(max(rounded // 512, 1), 16))
    width = min(rounded, 4096 if spec.reduced == spec.lanes else 1024)
    return Schedule(tile=(1, width), whole_row=False, warps=min(max(width // 256, 1), 8))


def lower_map_reduce_gpu(spec: MapReduceSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a map or reduction: a grid over rows and blocks of lanes.

    Knobs: `tile` (rows, width), powers of two: `rows` are those of the last outer axis, or steps of a reduced axis that
    lies outside the lanes; `whole_row`: a row kernel holds its rows in one tile, which its longest row must fit;
    `warps`; `nontemporal` (may be left out): results bypass the caches.

    Raises ScheduleError for partial results (`gpu_reduction`) whose row is not held.
    """
    width = schedule.integers("tile")[1]
    if spec.reduced == spec.lanes and not schedule["whole_row"]:
        if spec.counted is not None:
            raise ScheduleError(f"{spec.name} joins partial results, of which it holds a row", hints=["whole_row=True"])
        # Row by row in blocks, as on CPUs, with rests as wide as the blocks.
        streams = bool(schedule.get("nontemporal", False))
        looped = Schedule(tile=(1, width), keep=0, ahead=False, nontemporal=streams, parallel="outer")
        module = lower_map_reduce(spec, looped, width)
        name_arguments(kernel_of(module).body.block, spec.outputs, [])
        return with_hints(module, schedule)
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    name_arguments(block, spec.outputs, [])
    MapReduceLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return with_hints(module, schedule)


class MapReduceLowering(Grid):
    """One tile at a time: whole rows of a row kernel, or lanes beside the reduced axis."""

    def __init__(
        self, spec: MapReduceSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(builder, arguments)
        self.spec = spec
        self.schedule = schedule
        self.rows, self.width = schedule.integers("tile")
        self.nontemporal = bool(schedule.get("nontemporal", False))
        self.by_rows = spec.reduced == spec.lanes
        self.walks = spec.reduced is not None and not self.by_rows
        self.reductions = [v for v in post_order(output.value for output in spec.outputs) if v.is_reduction]

    @property
    def _row_axis(self) -> str:
        """The axis that the tile's rows walk; "" where it has one row, which no axis then does."""
        if self.rows == 1:
            return ""
        if self.walks:
            assert self.spec.reduced is not None
            return self.spec.reduced
        return self.spec.outer[-1]

    def lower(self) -> None:
        spec, builder = self.spec, self.builder
        # All extents first: the grid's body may not define what the kernel's end needs.
        self.reduced = None if spec.reduced is None else self.extent(spec.reduced)
        self.counted = self.reduced if spec.counted is None else self.extent(spec.counted)
        axes = dict.fromkeys(spec.outer, 1)
        if self.rows > 1 and not self.walks:
            axes[self._row_axis] = self.rows
        lanes = {} if self.by_rows else {spec.lanes: self.width}
        with self.over({**axes, **lanes}) as at:
            if self.by_rows:
                at[spec.lanes] = builder.index(0)
            sizes = {self._row_axis: self.rows, spec.lanes: self.width}
            self.writer = TileWriter(builder, self.arguments, sizes, Scope(frozenset(), 0), self._counted_extent)
            self.writer.enter(at, {axis: False for axis in sizes if axis in at})
            for stage in range(max(output.value.stage for output in spec.outputs) + 1):
                self._pass(stage)

    def _reduced_extent(self) -> SSAValue:
        assert self.reduced is not None
        return self.reduced

    def _counted_extent(self) -> SSAValue:
        assert self.counted is not None
        return self.counted

    def _pass(self, stage: int) -> None:
        """The reductions over what has stage `stage`, and the outputs of that stage."""
        reductions = [value for value in self.reductions if value.stage == stage + 1]
        outputs = [output for output in self.spec.outputs if output.value.stage == stage]
        if self.by_rows:
            for value in reductions:
                self.writer.define(value, self._reduce_row(value))
        else:
            inside = [output for output in outputs if self._walked(output)]
            if reductions or inside:
                self._walk(reductions, inside)
            outputs = [output for output in outputs if output not in inside]
        for output in outputs:
            self._store(output)

    def _walked(self, output: Output) -> bool:
        """Whether an output has elements along the reduced axis; its value may be the same in all of them."""
        reduced = self.spec.reduced
        return reduced is not None and (
            reduced in output.value.axes or reduced in self.spec.arguments[output.argument].axes
        )

    def _reduce_row(self, value: Value) -> SSAValue:
        """A reduction of the rows, whose lanes beyond their end count as the neutral element."""
        builder = self.builder
        element = value.arguments[0]
        rows = self.rows if self._row_axis in element.axes else 1
        masked = self._masked(value, (rows, self.width), builder.index(0), 1)
        return builder.reduce(masked, value.kind, 1)

    def _masked(self, value: Value, shape: tuple[int, int], position: SSAValue, axis: int) -> SSAValue:
        """What a reduction reduces, with the neutral element beyond the end of the reduced axis."""
        builder = self.builder
        element = self.writer.write(value.arguments[0], shape)
        mask = builder.mask(position, self._reduced_extent(), shape, axis)
        neutral = builder.splat(identity(value.kind, value.dtype), value.dtype, shape)
        return builder.append(tile.SelectOp.create(operands=[mask, element, neutral], result_types=[element.type]))

    def _walk(self, reductions: Sequence[Value], outputs: Sequence[Output]) -> None:
        """A loop along the reduced axis, which lies outside the lanes, in steps of the tile's rows."""
        builder, writer = self.builder, self.writer
        reduced = self.spec.reduced
        assert reduced is not None
        shapes = [(self.rows, self.width if self.spec.lanes in value.arguments[0].axes else 1) for value in reductions]
        neutral = [
            builder.splat(identity(value.kind, value.dtype), value.dtype, shape)
            for value, shape in zip(reductions, shapes, strict=True)
        ]
        with (
            builder.loop(builder.index(0), self._reduced_extent(), self.rows, neutral) as loop,
            writer.inside({reduced: loop.index}, {reduced: False} if self.rows > 1 else {}),
        ):
            loop.index.name_hint = reduced
            loop.yielded = tuple(
                self._combine(value, carried, self._step(value, shape, loop.index))
                for value, carried, shape in zip(reductions, loop.carried, shapes, strict=True)
            )
            for output in outputs:
                self._store(output)
        for value, result in zip(reductions, loop.results, strict=True):
            writer.define(value, builder.reduce(result, value.kind, 0) if self.rows > 1 else result)

    def _step(self, value: Value, shape: tuple[int, int], position: SSAValue) -> SSAValue:
        return (
            self._masked(value, shape, position, 0) if self.rows > 1 else self.writer.write(value.arguments[0], shape)
        )

    def _combine(self, value: Value, a: SSAValue, b: SSAValue) -> SSAValue:
        floats, integers = _COMBINE[value.kind]
        operation = floats if value.dtype.kind == "float" else integers
        return self.builder.append(operation(a, b))

    def _store(self, output: Output) -> None:
        argument, writer = self.spec.arguments[output.argument], self.writer
        shape = tuple(size if axis in argument.axes else 1 for axis, size in writer.sizes.items())
        dims = [argument.axes.index(axis) if axis in argument.axes else -1 for axis in writer.sizes]
        self.builder.store(
            writer.write(output.value, shape),
            self.arguments[output.argument].value,
            [writer.position(axis) for axis in argument.axes],
            dims,
            [dim < 0 for dim in dims],
            nontemporal=self.nontemporal,
        )
