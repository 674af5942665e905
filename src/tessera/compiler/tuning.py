"""What `autotune` asks of the compiler: the kernel that an operator and shapes stand for, and ready candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from xdsl.ir import BlockArgument, SSAValue

from tessera.backend.contract import KernelObject
from tessera.backend.llvm import ceilings
from tessera.compiler import entry, pipeline
from tessera.compiler.arrays import Call
from tessera.compiler.binding import launches_of
from tessera.compiler.kernels import KernelCompiler, Launch, useful_workers
from tessera.compiler.revision import generator_revision
from tessera.compiler.specs import attributes_of, dtype_of_value
from tessera.compiler.subjects import Problem, Subject
from tessera.dtypes import DType, dtype_of, fp32
from tessera.errors import ArgumentError
from tessera.ir.graph import GraphOperation
from tessera.lazy import node as nodes
from tessera.lazy import structure as structures
from tessera.lazy.leaf import Placeholder
from tessera.lazy.node import Node
from tessera.lazy.policy import current_policy
from tessera.lazy.symbolic import symbolic_form
from tessera.ops import OPERATORS
from tessera.rewrite.groups import CONTRACTIONS
from tessera.runtime.threads import worker_count
from tessera.scheduling.contraction_space import ContractionProblem
from tessera.scheduling.cost import RooflineModel
from tessera.scheduling.schedule import Schedule
from tessera.tuning.checking import FullReference, check_output
from tessera.tuning.identity import Identity
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.workload import Case, OperandSpec, Values, Workload, materialize
from tessera.tuning.workload import Launch as WorkerLaunch

_POSITIVE = frozenset(("log", "sqrt", "rsqrt", "pow", "div"))
_EXACT_FLOPS = 4e9
"""Work up to which references are computed in float64; larger ones in the operands' own precision or fp32."""


class CompilerBackend:
    """The `TuningBackend` of this process's compiler."""

    @property
    def arch(self) -> str:
        """The processor, as LLVM names it."""
        return pipeline.kernel_compiler().target.arch

    def subject(self, op: object, shapes: object, dtype: object) -> TuningProblem:
        """The heaviest kernel of `op` applied to operands of these shapes.

        A tuple of ints is (M, N, K) for matmul and gemm, the operand's shape for all else; a list holds one shape per
        operand. Raises ArgumentError for what is no operator, and what the operator raises for shapes.
        """
        if not callable(op):
            raise ArgumentError(
                f"{op!r} is no operator", hints=["pass op.matmul, op.softmax, or a function made by op.kernel"]
            )
        element = fp32 if dtype is None else dtype_of(dtype)
        arguments = [_placeholder(shape, element) for shape in operand_shapes(op, shapes)]
        result = op(*arguments)
        node = result[0] if isinstance(result, tuple) else result
        assert isinstance(node, Node)
        program = pipeline.program_of(symbolic_form(node.structure))
        compiler = pipeline.kernel_compiler()
        launches = launches_of(program, node.structure, compiler)
        if not launches:
            raise ArgumentError(f"{_name(op)} of {shapes} runs no kernel: there is nothing to tune")
        return tuning_problem(max(launches, key=_work).call, compiler)


def operand_shapes(op: object, shapes: object) -> list[tuple[int, ...]]:
    """The operand shapes that `autotune(op, shapes=...)` speaks of."""
    if isinstance(shapes, list):
        return [tuple(int(extent) for extent in shape) for shape in shapes]
    if not isinstance(shapes, tuple) or not all(isinstance(extent, int) for extent in shapes):
        raise ArgumentError(
            f"shapes={shapes!r}", hints=["a tuple of ints (M, N, K for matmul), or a list with one shape per operand"]
        )
    if _name(op) in CONTRACTIONS:
        if len(shapes) != 3:
            raise ArgumentError(f"shapes={shapes!r}: a matrix product has the problem size (M, N, K)")
        m, n, k = shapes
        return [(m, k), (k, n)]
    return [shapes]


def _name(op: object) -> str:
    return str(getattr(op, "__name__", op))


def _placeholder(shape: tuple[int, ...], dtype: DType) -> Any:
    structure = structures.buffer(shape, structures.contiguous_strides(shape), dtype)
    return nodes.leaf_node(Placeholder(structure))


def tuned_schedule(compiler: KernelCompiler, call: Call, problem: Problem) -> Schedule | None:
    """What the tuner remembers for a call (and, while tuning is on, measures now); None where that is nothing."""
    if not entry.autotune.enabled and not _anything_tuned():
        return None
    config = entry.autotune.schedule_for(tuning_problem(call, compiler))
    return None if config.source == "default" else config.schedule


def _anything_tuned() -> bool:
    """Whether any layer of the database holds an entry; asked anew when the tuner says that something changed."""
    return entry.autotune.remembers_anything


def _work(launch: Launch) -> float:
    facts = pipeline.kernel_compiler().facts([launch])()[0]
    return facts.flops + facts.bytes


@cache
def _model(compiler: KernelCompiler) -> RooflineModel:
    return RooflineModel(ceilings.stored(), compiler.target)


def tuning_problem(call: Call, compiler: KernelCompiler) -> TuningProblem:
    """The problem of one call, ready to tune."""
    subject = compiler.subject(call)
    workers = 1 if current_policy().fixed_order else worker_count()
    problem = subject.problem(call.shaped.extents, workers)
    space = compiler.space(problem)
    workload: list[Workload] = []

    def build(schedule: Schedule) -> Case:
        if not workload:
            workload.append(_workload(call))
        kernel = compiler.candidate(subject, schedule, problem)
        return Case(workload[0], (_worker_launch(call, kernel, useful_workers(problem, worker_count())),))

    model = _model(compiler)
    return TuningProblem(
        identity_of(subject, problem, call, compiler),
        space,
        build,
        lambda schedule: model.estimate(problem, schedule).seconds,
        generator_revision(),
    )


def identity_of(subject: Subject, problem: Problem, call: Call, compiler: KernelCompiler) -> Identity:
    """What a tuned schedule of this call is remembered under."""
    extents = call.shaped.extents
    arguments = subject.pattern.arguments
    shape = (
        (problem.batch, problem.m, problem.n, problem.k)
        if isinstance(problem, ContractionProblem) and problem.batch > 1
        else (problem.m, problem.n, problem.k)
        if isinstance(problem, ContractionProblem)
        else tuple(extents.values())
    )
    policy = current_policy()
    return Identity(
        operator=subject.item.name.rsplit("_", 1)[0],
        shape=shape,
        dtypes=tuple(argument.dtype.name for argument in arguments),
        layouts=tuple(
            "scalar"
            if a.is_scalar
            else ",".join(f"{axis}{'' if s is None else s}" for axis, s in zip(a.axes, a.strides, strict=True))
            for a in arguments
        ),
        math="tf32" if policy.tf32 else "ieee",
        accumulation=problem.accumulator.name if isinstance(problem, ContractionProblem) else "fp32",
        determinism=policy.mode,
        arch=compiler.target.arch,
        threads=problem.workers,
    )


def _workload(call: Call) -> Workload:
    item = call.item
    names = {op.operator for op in item.operation.body.block.ops if isinstance(op, GraphOperation)}
    values: Values = "positive" if names & _POSITIVE else "normal"
    loads = len(item.loads)
    specs: list[OperandSpec] = []
    scalars: list[int] = []
    inputs: dict[int, torch.Tensor] = {}
    for index, (view, _) in enumerate(call.arguments):
        if view.is_scalar:
            number = _scalar_bits(view.dtype)
            scalars.append(number[0])
            inputs.setdefault(item.loads[index][0], torch.tensor(number[1], dtype=view.dtype.torch))
            continue
        # An input that is read under two alignments is two operands of the same values.
        seed = item.loads[index][0] if index < loads else 0
        spec = OperandSpec(view.shape, view.strides, view.dtype.name, values if index < loads else "zero", seed)
        specs.append(spec)
        if index < loads:
            inputs.setdefault(item.loads[index][0], materialize(spec).tensor)
    references = evaluate_region(call, [inputs[i] for i in range(len(item.inputs))])
    first = sum(not view.is_scalar for view, _ in call.arguments[:loads])
    checks = tuple(
        check_output(first + i, FullReference(reference), call.arguments[loads + i][0].dtype.name)
        for i, reference in enumerate(references)
    )
    return Workload(tuple(specs), checks, tuple(scalars))


def _scalar_bits(dtype: DType) -> tuple[int, float]:
    """The bits and the value of a scalar argument in a tuning run: three quarters, or 1 for integers."""
    value = 0.75 if dtype.kind == "float" else 1
    tensor = torch.tensor([value], dtype=dtype.torch)
    word = int.from_bytes(bytes(tensor.view(torch.uint8).tolist()), "little")
    return word, value


def evaluate_region(call: Call, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a kernel by its operators' references, on the region's inputs."""
    wide = torch.float64 if _flops(call) <= _EXACT_FLOPS else torch.float32
    body = call.item.operation.body.block
    known: dict[SSAValue, torch.Tensor] = {}

    def value(operand: SSAValue) -> torch.Tensor:
        tensor = inputs[operand.index] if isinstance(operand, BlockArgument) else known[operand]
        return tensor.to(wide) if tensor.is_floating_point() else tensor

    for op in body.ops:
        if not isinstance(op, GraphOperation):
            continue
        dtype = dtype_of_value(op.result).torch
        if op.operator == "constant":
            known[op.result] = torch.tensor(op.attribute("value"), dtype=dtype)
            continue
        operands = [value(operand) for operand in op.inputs]
        for index, flag in enumerate(("transpose_a", "transpose_b")):
            if op.attribute(flag, False):
                operands[index] = operands[index].mT
        known[op.result] = OPERATORS[op.operator].reference(*operands, **attributes_of(op))
    last = body.last_op
    assert last is not None
    return [known[v] if not isinstance(v, BlockArgument) else inputs[v.index] for v in last.operands]


def _flops(call: Call) -> float:
    extents = call.shaped.extents
    return 2.0 * math.prod(extents.values())


def _worker_launch(call: Call, kernel: KernelObject, workers: int) -> WorkerLaunch:
    """The launch over a table of the operands first, then the scalars."""
    buffers = sum(not view.is_scalar for view, _ in call.arguments)
    descriptors: list[int] = []
    buffer, scalar = 0, buffers
    for view, words in call.arguments:
        if view.is_scalar:
            descriptors.append(scalar)
            scalar += 1
        else:
            descriptors += [buffer, 0, *words]
            buffer += 1
    return WorkerLaunch(kernel.to_bytes(), tuple(descriptors), workers)
