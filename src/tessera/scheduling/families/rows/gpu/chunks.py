"""A reduction in two steps, for few long rows: programs reduce chunks of the reduced axis, a second kernel joins them.

One program per row leaves a GPU idle where there are fewer rows than multiprocessors; the sum of a whole tensor is one
row. The order of additions is fixed by the chunk, so that results are reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.lazy.structures.structure import contiguous_strides
from tessera.scheduling.families.decomposition import (
    Array,
    DecomposableCall,
    Decomposition,
    KernelStep,
    Steps,
    Workspace,
)
from tessera.scheduling.families.rows.gpu.lowering import MapReduceLowering
from tessera.scheduling.families.rows.gpu.problem import GpuRowsProblem, map_reduce_gpu_problem
from tessera.scheduling.families.rows.gpu.space import row_width
from tessera.scheduling.families.rows.joining import joining_spec, nearest_reductions
from tessera.scheduling.families.rows.lowering import identity
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import name_arguments, with_hints
from tessera.scheduling.lowering.spec import Argument, MapReduceSpec, Output, kernel_module
from tessera.scheduling.lowering.writer import Scope, TileWriter
from tessera.scheduling.model.gpu_resources import ceil_div
from tessera.target import Target

_WIDTH, _COLUMNS, _STEPS = 2048, 128, 16
"""Lanes of a row's tile; lanes, and steps of the reduced axis beside them: 16 elements of each of 128 threads."""
_PROGRAMS = 4
"""Programs for each multiprocessor: 32 KiB on their way in fp32, and a tail of a quarter at most."""

CHUNK = "chunk"
"""The knob of the first kernel: the elements of the reduced axis that one program takes."""
PART = "part"
"""The axis of partial results: one for each chunk of the reduced axis."""


@dataclass(frozen=True)
class TwoSteps:
    """The kernels of a reduction in two steps.

    `first` takes the inputs of the reduction, in their order, and writes its partial results, which have the axis
    `PART`: as many elements as chunks cover the reduced axis. `second` takes the partial results, then those inputs of
    the reduction whose numbers are `inputs` (of some it reads nothing but the extent), then the results.
    """

    first: MapReduceSpec
    second: MapReduceSpec
    inputs: tuple[int, ...]


def two_steps(spec: MapReduceSpec) -> TwoSteps | None:
    """The two kernels that compute what `spec` does; None where they cannot: where it walks its row more than once, or
    writes something for each element of it.
    """
    reductions = nearest_reductions(spec)
    if spec.reduced is None or not reductions or any(value.stage != 1 for value in reductions):
        return None
    if any(spec.reduced in _axes(spec, output) for output in spec.outputs):
        return None
    count = min(output.argument for output in spec.outputs)
    columns = () if spec.reduced == spec.lanes else (spec.lanes,)
    axes = (*spec.outer, PART, *columns)
    unit = columns[-1] if columns else PART
    partial = [Argument(value.dtype, axes, tuple(1 if axis == unit else None for axis in axes)) for value in reductions]
    outputs = tuple(Output(count + index, value) for index, value in enumerate(reductions))
    first = replace(spec, name=f"{spec.name}_parts", arguments=(*spec.arguments[:count], *partial), outputs=outputs)
    second, inputs = joining_spec(spec, PART, reductions, partial, count)
    return TwoSteps(first, second, inputs)


def partial_schedule(problem: GpuRowsProblem) -> Schedule | None:
    """The schedule of the first step; None where one step keeps every multiprocessor busy, or a second one would cost
    more than it saves.
    """
    width = min(row_width(problem.lanes), _WIDTH if problem.by_rows else _COLUMNS)
    rows = 1 if problem.by_rows else _STEPS
    programs = max(problem.outer, 1) * (1 if problem.by_rows else ceil_div(problem.lanes, width))
    least = 4 * (width if problem.by_rows else rows)
    if programs >= problem.target.cores or problem.reduced < 2 * least:
        return None
    parts = ceil_div(_PROGRAMS * problem.target.cores, programs)
    chunk = max(1 << (ceil_div(problem.reduced, parts) - 1).bit_length(), least)
    return Schedule(tile=(rows, width), warps=4, chunk=chunk) if chunk < problem.reduced else None


def lower_partial_gpu(first: MapReduceSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of the first step: a grid over rows, chunks of the reduced axis and, beside it, blocks of lanes.

    Knobs: `tile` and `warps` as in `lower_map_reduce_gpu`; `chunk`, the elements of the reduced axis that one program
    reduces, a multiple of the tile's extent along it.
    """
    module, block, arguments = kernel_module(first.name, first.arguments, first.outputs)
    name_arguments(block, first.outputs, [])
    _PartialLowering(first, schedule, TileBuilder(block), arguments).lower()
    return with_hints(module, schedule)


def _axes(spec: MapReduceSpec, output: Output) -> frozenset[str]:
    return output.value.axes | frozenset(spec.arguments[output.argument].axes)


class _PartialLowering(MapReduceLowering):
    """One chunk of the reduced axis at a time."""

    def lower(self) -> None:
        spec, builder = self.spec, self.builder
        chunk = self.schedule.integer(CHUNK)
        assert spec.reduced is not None
        self.reduced = self.counted = self.extent(spec.reduced)
        lanes = {} if self.by_rows else {spec.lanes: self.width}
        with self.over({**dict.fromkeys(spec.outer, 1), spec.reduced: chunk, **lanes}) as at:
            start = at.pop(spec.reduced)
            sizes = {self._row_axis: self.rows, spec.lanes: self.width}
            self.writer = TileWriter(builder, self.arguments, sizes, Scope(frozenset(), 0), self._counted_extent)
            self.writer.enter(at, {axis: False for axis in sizes if axis in at})
            sums = self._walk_chunk(start, builder.add(start, builder.index(chunk)))
            part = builder.floor_div(start, builder.index(chunk))
            for output, total in zip(spec.outputs, sums, strict=True):
                axes = spec.arguments[output.argument].axes
                position = {**at, PART: part}
                dims = [-1, -1 if self.by_rows else axes.index(spec.lanes)]
                target = self.arguments[output.argument].value
                builder.store(total, target, [position[axis] for axis in axes], dims, [True, self.by_rows])

    def _walk_chunk(self, start: SSAValue, end: SSAValue) -> list[SSAValue]:
        """The reductions of one chunk: tiles are joined element by element, and at the end their elements."""
        builder, writer, spec = self.builder, self.writer, self.spec
        assert spec.reduced is not None
        axis, step = (1, self.width) if self.by_rows else (0, self.rows)
        shape = (self.rows, self.width)
        neutral = [builder.splat(identity(v.kind, v.dtype), v.dtype, shape) for v in self.reductions]
        with (
            builder.loop(start, end, step, neutral) as loop,
            writer.inside({spec.reduced: loop.index}, {spec.reduced: False}),
        ):
            loop.index.name_hint = spec.reduced
            loop.yielded = tuple(
                self._combine(value, carried, self._masked(value, shape, loop.index, axis))
                for value, carried in zip(self.reductions, loop.carried, strict=True)
            )
        joined = zip(self.reductions, loop.results, strict=True)
        return [builder.reduce(tile, value.kind, axis) if step > 1 else tile for value, tile in joined]


def _proposed(spec: MapReduceSpec, extents: Mapping[str, int], target: Target) -> Schedule | None:
    """The schedule of the first of two kernels; None where one kernel does as well, or has to do."""
    if target.kind != "gpu" or spec.reduced is None:
        return None
    schedule = partial_schedule(map_reduce_gpu_problem(spec, extents, target))
    return None if schedule is None or two_steps(spec) is None else schedule


def _steps(case: DecomposableCall) -> Steps:
    spec, made = case.spec, case.once(two_steps)
    assert made is not None
    count = min(output.argument for output in spec.outputs)
    extents = {**case.extents, PART: ceil_div(case.extents[spec.reduced], case.schedule.integer(CHUNK))}
    arguments = [
        Array(index, words[: len(words) // 2], words[len(words) // 2 :])
        for index, (_, words) in enumerate(case.arguments)
    ]
    workspaces: dict[str, Workspace] = {}
    partial: list[Array] = []
    for number, argument in enumerate(made.first.arguments[count:]):
        shape = tuple([extents[axis] for axis in argument.axes])
        workspaces[f"parts{number}"] = Workspace(argument.dtype, shape)
        partial.append(Array(f"parts{number}", shape, contiguous_strides(shape)))
    joined = (*partial, *[arguments[index] for index in made.inputs], *arguments[count:])
    return Steps(
        (
            KernelStep(made.first, (*arguments[:count], *partial), extents, case.schedule),
            KernelStep(made.second, joined, extents),
        ),
        workspaces,
    )


CHUNKS = Decomposition(
    name="chunks",
    why="few long rows would leave most multiprocessors idle: programs reduce chunks of them",
    when="schedule",
    applies=lambda case: CHUNK in case.schedule,
    proposes=_proposed,
    steps=_steps,
)
