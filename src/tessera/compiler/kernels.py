"""Kernels of a program: the schedule of each, its Tile IR, its object, and what reports say about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Region

from tessera.backend.contract import KernelObject, LoadedKernel
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.graph import element
from tessera.compiler.program import KernelItem, align_region
from tessera.compiler.specs import Pattern, contraction_spec, dtype_of_value, map_reduce_spec
from tessera.dtypes import DType, accumulator, fp32
from tessera.ir import graph
from tessera.ir import schedule as schedule_ir
from tessera.ir.attributes import dimension_names, tensor_type, to_attribute
from tessera.ir.graph import GraphOperation
from tessera.lazy.policy import current_policy
from tessera.ops import OPERATORS
from tessera.profiling.schema import StepFacts
from tessera.rewrite.groups import CONTRACTIONS
from tessera.runtime.threads import worker_count
from tessera.scheduling import contraction_space, mapreduce_space
from tessera.scheduling.contraction import lower_contraction, unit_axis
from tessera.scheduling.contraction_space import ContractionProblem
from tessera.scheduling.expression import post_order
from tessera.scheduling.knobs import Space
from tessera.scheduling.mapreduce import kept_values, lower_map_reduce
from tessera.scheduling.mapreduce_space import MapReduceProblem
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import ContractionSpec, MapReduceSpec
from tessera.target import Target

if TYPE_CHECKING:
    from tessera.compiler.binding import Call, Launch, ShapedArrays

Problem = ContractionProblem | MapReduceProblem

PARALLEL_FLOPS = 2_000_000
"""Work below which starting a second worker (1.1 us on this project's machines) costs more than it saves."""
PARALLEL_BYTES = 1 << 18


@dataclass(frozen=True)
class Subject:
    """A kernel with a layout pattern: what can be scheduled, tuned and compiled."""

    item: KernelItem
    pattern: Pattern

    def __hash__(self) -> int:
        return hash((id(self.item), self.pattern))


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled kernel under one schedule."""

    subject: Subject
    schedule: Schedule
    loaded: LoadedKernel
    workspace_bytes: int


ScheduleSource = Callable[["KernelCompiler", "Call"], Schedule | None]
"""Gives the tuned schedule of a call, or None where nothing was tuned for it."""

REMEMBERED = 1 << 14
"""Choices of schedules kept before they are made again."""


class KernelCompiler:
    """Chooses schedules and compiles kernels for one target. `source`, when set, is asked first (tuned schedules)."""

    def __init__(self, target: Target, backend: LLVMBackend) -> None:
        self.target, self.backend = target, backend
        self.source: ScheduleSource | None = None
        self._chosen: dict[object, tuple[tuple[Subject, Schedule], int]] = {}
        self._specs: dict[Subject, ContractionSpec | MapReduceSpec] = {}
        self._copies: dict[tuple[DType, tuple[bool, ...]], KernelItem] = {}

    # -- the path of binding --------------------------------------------------------------------------------------

    def kernel(self, call: Call) -> tuple[Kernel, int]:
        """The kernel of a call, compiled if its pattern and schedule are new, and its number of workers."""
        subject = Subject(call.item, call.shaped.pattern)
        threads = worker_count()
        key = (subject, tuple(call.shaped.extents.values()), threads, current_policy())
        known = self._chosen.get(key)
        if known is None:
            problem = self.problem(subject, call.shaped, threads)
            known = self._schedule(call, subject, problem), useful_workers(problem, threads)
            if len(self._chosen) >= REMEMBERED:
                self._chosen.clear()
            self._chosen[key] = known
        (subject, schedule), workers = known
        return self.compiled(subject, schedule), workers

    def _schedule(self, call: Call, subject: Subject, problem: Problem) -> tuple[Subject, Schedule]:
        tuned = self.source(self, call) if self.source is not None else None
        schedule = tuned if tuned is not None else self.default_schedule(subject, problem)
        return _blocked(subject, schedule, problem), schedule

    def forget_schedules(self) -> None:
        """Schedules are chosen anew; compiled kernels stay."""
        self._chosen.clear()

    def candidate(self, subject: Subject, schedule: Schedule, problem: Problem) -> KernelObject:
        """A subject compiled for measuring only: without the optimizations that cost more time than they save."""
        module = self.tile_ir(_blocked(subject, schedule, problem), schedule)
        return self.backend.compile(module, self.target, optimize=False)

    def compiled(self, subject: Subject, schedule: Schedule) -> Kernel:
        """The kernel of a subject under a schedule, from memory, from disk, or compiled now."""
        key = (subject.pattern, schedule)
        kernel = subject.item.variants.get(key)
        if not isinstance(kernel, Kernel):
            compiled = self.backend.compile(self.tile_ir(subject, schedule), self.target)
            kernel = Kernel(subject, schedule, self.backend.load(compiled), compiled.workspace_bytes)
            subject.item.variants[key] = kernel
        return kernel

    def tile_ir(self, subject: Subject, schedule: Schedule) -> ModuleOp:
        """The Tile IR of a subject under a schedule."""
        spec = self.spec(subject)
        if isinstance(spec, ContractionSpec):
            return lower_contraction(spec, schedule, self.target.has_avx512bf16)
        return lower_map_reduce(spec, schedule, self.target.vector_bits // 32)

    # -- schedules ------------------------------------------------------------------------------------------------

    def spec(self, subject: Subject) -> ContractionSpec | MapReduceSpec:
        """The specification that lowerings take."""
        spec = self._specs.get(subject)
        if spec is None:
            make = contraction_spec if subject.item.family == "contraction" else map_reduce_spec
            spec = self._specs.setdefault(subject, make(subject.item, subject.pattern))
        return spec

    def problem(self, subject: Subject, shaped: ShapedArrays, workers: int) -> Problem:
        """What legality rules and cost models need to know."""
        spec = self.spec(subject)
        if isinstance(spec, ContractionSpec):
            return self._contraction_problem(spec, shaped.extents, workers)
        return self._map_reduce_problem(spec, shaped.extents, workers)

    def _contraction_problem(self, spec: ContractionSpec, extents: Mapping[str, int], workers: int) -> ContractionProblem:
        raw_a, raw_b = (value.arguments[0] if value.operation == "cast" else value for value in (spec.a, spec.b))
        return ContractionProblem(
            m=extents["m"],
            n=extents["n"],
            k=extents["k"],
            batch=math.prod(extents[axis] for axis in spec.batch),
            a_dtype=raw_a.dtype,
            b_dtype=raw_b.dtype,
            out_dtype=spec.outputs[0].value.dtype,
            accumulator=spec.accumulator.dtype,
            a_contiguous=unit_axis(spec.a, spec.arguments, ""),
            b_contiguous=unit_axis(spec.b, spec.arguments, ""),
            a_mapped=raw_a.operation != "load",
            b_mapped=raw_b.operation != "load",
            outputs=len(spec.outputs),
            epilogue_operations=len(post_order(output.value for output in spec.outputs)) - 1,
            target=self.target,
            workers=workers,
            native_bf16=self.target.has_avx512bf16,
        )

    def _map_reduce_problem(self, spec: MapReduceSpec, extents: Mapping[str, int], workers: int) -> MapReduceProblem:
        first_output = min(output.argument for output in spec.outputs)
        sizes = [
            math.prod(extents[axis] for axis in argument.axes) * argument.dtype.itemsize for argument in spec.arguments
        ]
        values = post_order(output.value for output in spec.outputs)
        reductions = [value for value in values if value.is_reduction]
        return MapReduceProblem(
            outer=math.prod(extents[axis] for axis in spec.outer),
            reduced=extents[spec.reduced] if spec.reduced is not None else 1,
            lanes=extents[spec.lanes],
            by_rows=spec.reduced == spec.lanes,
            bytes_in=sum(sizes[:first_output]),
            bytes_out=sum(sizes[first_output:]),
            passes=max((output.value.stage for output in spec.outputs), default=0) + 1,
            dear=len(kept_values(spec)),
            live=max(1, len(reductions)),
            flops=len(values),
            target=self.target,
            workers=workers,
        )

    def space(self, problem: Problem) -> Space[ContractionProblem] | Space[MapReduceProblem]:
        """The schedules of a problem."""
        if isinstance(problem, ContractionProblem):
            return contraction_space.space(problem)
        return mapreduce_space.space(problem)

    def default_schedule(self, subject: Subject, problem: Problem) -> Schedule:
        """The schedule of a kernel that nobody has tuned; a `tile_shape=` of the user's pins the tile."""
        if isinstance(problem, MapReduceProblem):
            return mapreduce_space.default_schedule(problem)
        anchor = subject.item.anchor
        wanted = anchor.attribute("tile_shape") if anchor is not None else None
        if wanted:
            return self.space(problem).restricted({"tile": [wanted]}).default  # type: ignore[list-item]
        return contraction_space.default_schedule(problem)

    # -- copies and reports ---------------------------------------------------------------------------------------

    def copy_item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor of this dtype and rank; extents of 1 are static."""
        ones = tuple(extent == 1 for extent in shape)
        item = self._copies.get((dtype, ones))
        if item is None:
            item = self._copies.setdefault((dtype, ones), _make_copy_item(dtype, ones))
        return item

    def facts(self, launches: Sequence[Launch]) -> Callable[[], Sequence[StepFacts]]:
        """What reports say about the launches, counted when a report asks."""
        rows = [(launch.kernel, [(view.shape, view.dtype) for view, _ in launch.call.arguments]) for launch in launches]
        return lambda: [_step_facts(kernel, arrays) for kernel, arrays in rows]


def _blocked(subject: Subject, schedule: Schedule, problem: Problem) -> Subject:
    """The subject, with code for several K blocks where the schedule's block does not hold K."""
    if not isinstance(problem, ContractionProblem) or schedule.integers("tile")[2] >= problem.k:
        return subject
    return Subject(subject.item, replace(subject.pattern, one_block=False))


def useful_workers(problem: Problem, workers: int) -> int:
    """Workers that have something to do."""
    if isinstance(problem, ContractionProblem):
        return workers if 2 * problem.m * problem.n * problem.k * problem.batch >= PARALLEL_FLOPS else 1
    return workers if problem.bytes_in + problem.bytes_out >= PARALLEL_BYTES else 1


def _make_copy_item(dtype: DType, ones: tuple[bool, ...]) -> KernelItem:
    kind = tensor_type(tuple(1 if one else None for one in ones), element(dtype))
    names = tuple("1" if one else f"s{i}" for i, one in enumerate(ones))
    block = Block(arg_types=[kind])
    copy = graph.create("cast", [block.args[0]], kind, {"dtype": dtype.name})
    mapping = tuple(-1 if one else i for i, one in enumerate(ones))
    copy.attributes |= {"mapping": to_attribute(mapping), "dims": dimension_names(names)}
    block.add_ops([copy, schedule_ir.YieldOp.create(operands=[copy.result])])
    dims = ArrayAttr([dimension_names(names)])
    operation = schedule_ir.KernelOp.create(
        operands=[],
        result_types=[],
        attributes={
            "sym_name": StringAttr("copy"),
            "family": StringAttr("row"),
            "argument_dims": dims,
            "result_dims": dims,
            "domain": dimension_names(names),
        },
        regions=[Region(block)],
    )
    alignments = align_region(operation)
    load = alignments.uses[block.args[0]][0]
    return KernelItem(operation, "copy", "row", (0,), (1,), names, None, ((0, load),), (load,))


def _step_facts(kernel: Kernel, arrays: Sequence[tuple[tuple[int, ...], DType]]) -> StepFacts:
    """FLOPs by the operators' own cost rules where shapes are known, bytes as operands plus results."""
    item = kernel.subject.item
    operations = [op for op in item.operation.body.block.ops if isinstance(op, GraphOperation) and op.operator != "constant"]
    names = tuple(op.operator for op in operations)
    inputs, outputs = arrays[: len(item.loads)], arrays[len(item.loads) :]
    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
    elements = max(math.prod(shape) for shape, _ in arrays)
    flops = 0.0
    for op in operations:
        if op.operator in CONTRACTIONS:
            flops += _contraction_flops(item, inputs, outputs)
        else:
            flops += _per_element_flops(op) * elements
    dtype = dtype_of_value(operations[0].inputs[0]) if operations[0].inputs else fp32
    label = "+".join(names) if len(names) <= 4 else "+".join((*names[:3], f"{len(names) - 3} more"))
    return StepFacts(
        operator=label,
        kernel_name=item.name,
        flops=flops,
        bytes=float(nbytes),
        dtype=dtype.name,
        schedule=str(kernel.schedule),
        fused=names,
        shapes=tuple(shape for shape, _ in arrays),
    )


def _contraction_flops(
    item: KernelItem,
    inputs: Sequence[tuple[tuple[int, ...], DType]],
    outputs: Sequence[tuple[tuple[int, ...], DType]],
) -> float:
    inner = len(item.domain) - 1
    for (index, alignment), (shape, _) in zip(item.loads, inputs, strict=True):
        if inner in alignment:
            return 2.0 * math.prod(outputs[0][0]) * shape[alignment.index(inner)]
    return 2.0 * math.prod(outputs[0][0])


class _UnitShape:
    """An operand of one element, to ask a cost rule for its count per element."""

    def __init__(self, dtype: DType, rank: int) -> None:
        self.shape, self.dtype, self.weak = (1,) * rank, dtype, False


def _per_element_flops(operation: GraphOperation) -> float:
    operator = OPERATORS[operation.operator]
    units = [_UnitShape(accumulator(dtype_of_value(v)), v.type.get_num_dims()) for v in operation.inputs]  # type: ignore[attr-defined]
    result = _UnitShape(dtype_of_value(operation.result), operation.result.type.get_num_dims())  # type: ignore[attr-defined]
    attributes = {name: operation.attribute(name, default) for name, default in operator.attributes.items()}
    return float(operator.flops(units, result, attributes))
