"""Lowering for GPUs: the specifications that `contraction` and `mapreduce` lower for CPUs, in the shape that GPUs want.

One program of the grid owns one tile of the result. A matrix product (`gpu_contraction`) walks K in blocks and
multiplies whole blocks at once; a row kernel holds its whole row in one tile where the row's longest extent is known to
fit. What is staged in shared memory and in registers is left to the compiler that reads this Tile IR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera.ir import tile
from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.expression import Value, post_order
from tessera.scheduling.gpu_contraction import lower_contraction_gpu
from tessera.scheduling.gpu_grid import Grid, kernel_of, name_arguments, with_hints
from tessera.scheduling.gpu_problem import contraction_gpu_problem
from tessera.scheduling.mapreduce import identity, lower_map_reduce
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import MapReduceSpec, Output, kernel_module
from tessera.scheduling.writer import ArgumentTile, Scope, TileWriter

__all__ = [
    "LONGEST_ROW",
    "contraction_gpu_problem",
    "lower_contraction_gpu",
    "lower_map_reduce_gpu",
    "map_reduce_gpu_schedule",
]

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
    """The schedule of a map or reduction that nobody has tuned, whose lane axis has at most `columns` elements."""
    rounded = 1 << max(columns - 1, 0).bit_length()
    if spec.reduced == spec.lanes and rounded <= LONGEST_ROW:
        return Schedule(tile=(1, rounded), whole_row=True, warps=min(max(rounded // 512, 1), 16))
    width = min(rounded, 4096 if spec.reduced == spec.lanes else 1024)
    return Schedule(tile=(1, width), whole_row=False, warps=min(max(width // 256, 1), 8))


def lower_map_reduce_gpu(spec: MapReduceSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a map or reduction: one program per row, or per block of lanes.

    Knobs: `tile` (1, width), a power of two; `whole_row`: a row kernel holds its row in one tile, which its longest row
    must fit; `warps`.
    """
    if spec.reduced == spec.lanes and not schedule["whole_row"]:
        # Row by row in blocks, as on CPUs, with rests as wide as the blocks.
        looped = Schedule(tile=schedule["tile"], keep=0, ahead=False, nontemporal=False, parallel="outer")
        module = lower_map_reduce(spec, looped, schedule.integers("tile")[1])
        name_arguments(kernel_of(module).body.block, spec.outputs, [])
        return with_hints(module, schedule)
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    name_arguments(block, spec.outputs, [])
    _MapReduceLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return with_hints(module, schedule)


class _MapReduceLowering(Grid):
    """One block of lanes at a time: the whole row of a row kernel, or lanes beside the reduced axis."""

    def __init__(
        self, spec: MapReduceSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(spec.arguments, builder, arguments)
        self.spec = spec
        self.width = schedule.integers("tile")[1]
        self.by_rows = spec.reduced == spec.lanes
        self.reductions = [v for v in post_order(output.value for output in spec.outputs) if v.is_reduction]

    def lower(self) -> None:
        spec, builder = self.spec, self.builder
        # All extents first: the grid's body may not define what the kernel's end needs.
        self.reduced = None if spec.reduced is None else self.extent(spec.reduced)
        lanes = {} if self.by_rows else {spec.lanes: self.width}
        with self.over({**dict.fromkeys(spec.outer, 1), **lanes}) as at:
            if self.by_rows:
                at[spec.lanes] = builder.index(0)
            self.writer = TileWriter(
                builder, self.arguments, {"": 1, spec.lanes: self.width}, Scope(frozenset(), 0), self._reduced_extent
            )
            self.writer.enter(at, {spec.lanes: False})
            for stage in range(max(output.value.stage for output in spec.outputs) + 1):
                self._pass(stage)

    def _reduced_extent(self) -> SSAValue:
        assert self.reduced is not None
        return self.reduced

    def _pass(self, stage: int) -> None:
        """The reductions over what has stage `stage`, and the outputs of that stage."""
        reductions = [value for value in self.reductions if value.stage == stage + 1]
        outputs = [output for output in self.spec.outputs if output.value.stage == stage]
        if self.by_rows:
            for value in reductions:
                self.writer.define(value, self._reduce_row(value))
        else:
            inside = [output for output in outputs if self.spec.reduced in output.value.axes]
            if reductions or inside:
                self._walk(reductions, inside)
            outputs = [output for output in outputs if output not in inside]
        for output in outputs:
            self._store(output)

    def _reduce_row(self, value: Value) -> SSAValue:
        """A reduction of the row, whose lanes beyond the row's end count as the neutral element."""
        builder, shape = self.builder, (1, self.width)
        kind = str(value.attributes[0])
        element = self.writer.write(value.arguments[0], shape)
        mask = builder.mask(builder.index(0), self._reduced_extent(), shape, 1)
        neutral = builder.splat(identity(kind, value.dtype), value.dtype, shape)
        masked = builder.append(tile.SelectOp.create(operands=[mask, element, neutral], result_types=[element.type]))
        return builder.reduce(masked, kind, 1)

    def _walk(self, reductions: Sequence[Value], outputs: Sequence[Output]) -> None:
        """A loop along the reduced axis, which lies outside the lanes."""
        builder, writer = self.builder, self.writer
        assert self.spec.reduced is not None
        neutral = [
            builder.splat(identity(str(value.attributes[0]), value.dtype), value.dtype, writer.shape(value))
            for value in reductions
        ]
        with builder.loop(builder.index(0), self._reduced_extent(), 1, neutral) as loop:
            loop.index.name_hint = self.spec.reduced
            writer.enter({self.spec.reduced: loop.index}, {})
            loop.yielded = tuple(
                self._combine(value, carried, writer.write(value.arguments[0], writer.shape(value)))
                for value, carried in zip(reductions, loop.carried, strict=True)
            )
            for output in outputs:
                self._store(output)
            writer.leave()
        for value, result in zip(reductions, loop.results, strict=True):
            writer.define(value, result)

    def _combine(self, value: Value, a: SSAValue, b: SSAValue) -> SSAValue:
        floats, integers = _COMBINE[str(value.attributes[0])]
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
        )
