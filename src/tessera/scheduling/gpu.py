"""Lowering for GPUs: the specifications that `contraction` and `mapreduce` lower for CPUs, in the shape that GPUs want.

One program of the grid owns one tile of the result. A matrix product walks K in blocks and multiplies whole blocks at
once; a row kernel holds its whole row in one tile where the row's longest extent is known to fit. What is staged in
shared memory and in registers is left to the compiler that reads this Tile IR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, Operation, SSAValue

from tessera.dtypes import DType, fp32, tf32
from tessera.ir import tile
from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.expression import Value, post_order
from tessera.scheduling.gpu_space import GpuContractionProblem
from tessera.scheduling.mapreduce import identity, lower_map_reduce
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import Argument, ContractionSpec, MapReduceSpec, Output, kernel_module, loaded_arguments
from tessera.scheduling.writer import ArgumentTile, Scope, TileWriter
from tessera.target import Target

LONGEST_ROW = 16_384
"""Columns up to which a row kernel holds its row in one tile: 128 registers of each of 128 threads, in fp32."""

_COMBINE: Mapping[str, tuple[Callable[..., Operation], Callable[..., Operation]]] = {
    "add": (arith.AddfOp, arith.AddiOp),
    "mul": (arith.MulfOp, arith.MuliOp),
    "max": (arith.MaximumfOp, arith.MaxSIOp),
    "min": (arith.MinimumfOp, arith.MinSIOp),
}
"""Kind of a reduction -> the operation that joins two partial results, of floats and of integers."""


def contraction_gpu_problem(spec: ContractionSpec, extents: Mapping[str, int], target: Target) -> GpuContractionProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    return GpuContractionProblem(
        m=extents["m"],
        n=extents["n"],
        k=extents["k"],
        batch=math.prod(extents[axis] for axis in spec.batch),
        operand=_operand_dtypes(spec)[0],
        accumulator=spec.accumulator.dtype,
        output=max((output.value.dtype for output in spec.outputs), key=lambda dtype: dtype.itemsize),
        target=target,
    )


def map_reduce_gpu_schedule(spec: MapReduceSpec, columns: int) -> Schedule:
    """The schedule of a map or reduction that nobody has tuned, whose lane axis has at most `columns` elements."""
    rounded = 1 << max(columns - 1, 0).bit_length()
    if spec.reduced == spec.lanes and rounded <= LONGEST_ROW:
        return Schedule(tile=(1, rounded), whole_row=True, warps=min(max(rounded // 512, 1), 16))
    width = min(rounded, 4096 if spec.reduced == spec.lanes else 1024)
    return Schedule(tile=(1, width), whole_row=False, warps=min(max(width // 256, 1), 8))


def lower_contraction_gpu(spec: ContractionSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a matrix product: a grid over batch, M / BM and N / BN, one loop over K in steps of BK.

    Knobs: those of `gpu_space`; `warps` and `pipeline_depth` become attributes of the kernel, `group` of its grid.
    """
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _name_arguments(block, spec.outputs, [spec.a, spec.b])
    _ContractionLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return _with_hints(module, schedule)


def lower_map_reduce_gpu(spec: MapReduceSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a map or reduction: one program per row, or per block of lanes.

    Knobs: `tile` (1, width), a power of two; `whole_row`: a row kernel holds its row in one tile, which its longest row
    must fit; `warps`.
    """
    if spec.reduced == spec.lanes and not schedule["whole_row"]:
        # Row by row in blocks, as on CPUs, with rests as wide as the blocks.
        looped = Schedule(tile=schedule["tile"], keep=0, ahead=False, nontemporal=False, parallel="outer")
        module = lower_map_reduce(spec, looped, schedule.integers("tile")[1])
        _name_arguments(_kernel(module).body.block, spec.outputs, [])
        return _with_hints(module, schedule)
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _name_arguments(block, spec.outputs, [])
    _MapReduceLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return _with_hints(module, schedule)


def _kernel(module: ModuleOp) -> tile.KernelOp:
    kernel = module.body.block.first_op
    assert isinstance(kernel, tile.KernelOp)
    return kernel


def _with_hints(module: ModuleOp, schedule: Schedule) -> ModuleOp:
    """Notes on the kernel what is no part of its meaning: warps per program, and how deep loads are pipelined."""
    for knob in ("warps", "pipeline_depth"):
        if knob in schedule:
            _kernel(module).attributes[knob] = IntegerAttr(schedule.integer(knob), i64)
    return module


def _name_arguments(block: Block, outputs: Sequence[Output], operands: Sequence[Value]) -> None:
    """Names for readers: `a` and `b` are what a product reads, `out` is what a kernel writes, `x` all else."""
    written = [output.argument for output in outputs]
    for index, argument in enumerate(block.args):
        if index in written:
            argument.name_hint = "out" if len(written) == 1 else f"out{written.index(index)}"
        else:
            argument.name_hint = f"x{index}"
    for name, value in zip(("a", "b"), operands, strict=False):
        for index in loaded_arguments(value)[:1]:
            block.args[index].name_hint = name


def _operand_dtypes(spec: ContractionSpec) -> tuple[DType, DType]:
    """The dtypes in which the operands are multiplied: as they lie in memory where both are equally narrow.

    The product of two 16-bit floats is exact in fp32, so multiplying before widening changes nothing.
    """
    raw = [value.arguments[0] if value.operation == "cast" else value for value in (spec.a, spec.b)]
    a, b = (value.dtype for value in raw)
    narrow = a == b and a.kind == "float" and a.itemsize == 2 and all(value.operation == "load" for value in raw)
    return (a, b) if narrow else (spec.a.dtype, spec.b.dtype)


class _Grid:
    """What both lowerings share: extents of axes, and one loop per dimension of the grid."""

    def __init__(self, declared: Sequence[Argument], builder: TileBuilder, arguments: dict[int, ArgumentTile]) -> None:
        self.declared, self.builder, self.arguments = declared, builder, arguments

    def extent(self, axis: str) -> SSAValue:
        """The run-time extent of an iteration axis."""
        for index, argument in enumerate(self.declared):
            if axis in argument.axes:
                return self.builder.extent(self.arguments[index].value, argument.axes.index(axis))
        raise KeyError(axis)

    @contextmanager
    def over(self, axes: Mapping[str, int], group: int = 1) -> Iterator[dict[str, SSAValue]]:
        """The grid over `axes`, each cut into steps of the given size; yields where the program's tile begins.

        The loops run once on a GPU, where a program's share is one step. Without axes one program does the work. Of the
        last two axes `group` steps of the former are taken side by side.
        """
        extents = [self.extent(axis) for axis in axes] or [self.builder.index(1)]
        steps = list(axes.values()) or [1]
        names = list(axes) or ["program"]
        with ExitStack() as nest:
            bounds = nest.enter_context(self.builder.parallel(extents, steps, 0, group))
            at: dict[str, SSAValue] = {}
            for name, step, (lower, upper) in zip(names, steps, bounds, strict=True):
                lower.name_hint, upper.name_hint = name, f"{name}_end"
                at[name] = nest.enter_context(self.builder.loop(lower, upper, step)).index
                at[name].name_hint = name
            yield at


class _ContractionLowering(_Grid):
    def __init__(
        self, spec: ContractionSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(spec.arguments, builder, arguments)
        self.spec = spec
        self.bm, self.bn, self.bk = schedule.integers("tile")
        self.group = schedule.integer("group") if "group" in schedule else 1
        self.narrow = _operand_dtypes(spec) != (spec.a.dtype, spec.b.dtype)

    def lower(self) -> None:
        spec, builder = self.spec, self.builder
        depth = self.extent("k")
        with self.over({**dict.fromkeys(spec.batch, 1), "m": self.bm, "n": self.bn}, self.group) as at:
            zero = builder.splat(0, spec.accumulator.dtype, (self.bm, self.bn))
            with builder.loop(builder.index(0), depth, self.bk, [zero]) as loop:
                loop.index.name_hint, loop.carried[0].name_hint = "k", "acc"
                where = {**at, "k": loop.index}
                a = self._operand(spec.a, {"m": self.bm, "k": self.bk}, where, depth)
                b = self._operand(spec.b, {"k": self.bk, "n": self.bn}, where, depth)
                element = _operand_dtypes(spec)[0]
                if element is fp32 and spec.math == "tf32":
                    element = tf32
                loop.yielded = (builder.mma(a, b, loop.carried[0], self.bm, self.bn, self.bk, element),)
            self._epilogue(loop.results[0], at)

    def _writer(self, sizes: dict[str, int], at: Mapping[str, SSAValue]) -> TileWriter:
        writer = TileWriter(self.builder, self.arguments, sizes, Scope(frozenset(), 0))
        writer.enter(at, dict.fromkeys(sizes, False))
        return writer

    def _operand(self, value: Value, sizes: dict[str, int], at: Mapping[str, SSAValue], depth: SSAValue) -> SSAValue:
        """One block of an operand; beyond K it is zero."""
        shape = tuple(sizes.values())
        raw = value.arguments[0] if value.operation == "cast" else value
        writer = self._writer(sizes, at)
        if raw.operation == "load":
            return writer.write(raw if self.narrow else value, shape)
        # What a prologue makes of the zeros beyond K need not be zero.
        written = writer.write(value, shape)
        mask = self.builder.mask(at["k"], depth, shape, list(sizes).index("k"))
        zero = self.builder.splat(0, value.dtype, shape)
        return self.builder.append(tile.SelectOp.create(operands=[mask, written, zero], result_types=[written.type]))

    def _epilogue(self, acc: SSAValue, at: Mapping[str, SSAValue]) -> None:
        shape = (self.bm, self.bn)
        writer = self._writer({"m": self.bm, "n": self.bn}, at)
        writer.define(self.spec.accumulator, acc)
        for output in self.spec.outputs:
            axes = self.spec.arguments[output.argument].axes
            self.builder.store(
                writer.write(output.value, shape),
                self.arguments[output.argument].value,
                [at[axis] for axis in axes],
                [axes.index("m"), axes.index("n")],
                [False, False],
            )


class _MapReduceLowering(_Grid):
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
