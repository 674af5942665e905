"""What `autotune` asks of the compiler: the kernel that an operator and shapes stand for, and ready candidates."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from tessera.compiler import planning
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.constants import is_packed
from tessera.compiler.bind.launches import Launch, PlanCompiler
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.refusion import parts_of
from tessera.compiler.device import compilers
from tessera.compiler.device.gpu_kernels import GpuKernelCompiler
from tessera.compiler.device.kernels import KernelCompiler
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.program import KernelItem
from tessera.compiler.process.revision import generator_revision
from tessera.compiler.tune.candidates import extents_of_call
from tessera.compiler.tune.cpu_tuning import CpuCandidates, work_of
from tessera.compiler.tune.gpu_tuning import gpu_arch, gpu_tuning_problem, is_tuned
from tessera.compiler.tune.identities import identify
from tessera.compiler.tune.objections import objection
from tessera.compiler.tune.tuner import autotune
from tessera.dtypes import SUPPORTED, DType, dtype_of, fp32, tf32
from tessera.errors import ArgumentError, DeviceError, UnsupportedTargetError
from tessera.lazy import interning
from tessera.lazy import node as nodes
from tessera.lazy.devices import device_named
from tessera.lazy.leaf import Placeholder
from tessera.lazy.node import Node
from tessera.lazy.policy import current_policy
from tessera.lazy.structure import Structure, contiguous_strides
from tessera.lazy.threads import worker_count
from tessera.ops.record import family_of
from tessera.scheduling.families.family import Problem
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimates
from tessera.target import detect, detect_gpu, gpu
from tessera.tuning.interfaces import EstimatedSeconds, TuningProblem
from tessera.tuning.online.mode import looking
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Identity


class CompilerBackend:
    """The `TuningBackend` of this process's compilers; with `cpu` of a compiler for another CPU, for which problems are
    posed that nobody can measure here.
    """

    def __init__(self, cpu: KernelCompiler | None = None) -> None:
        self._cpu = cpu

    @property
    def archs(self) -> tuple[str, ...]:
        """The CPU, as LLVM names it, and the GPUs."""
        gpus = [detect_gpu(number) for number in range(torch.cuda.device_count())]
        return (compilers.kernel_compiler().target.arch, *(gpu_arch(gpu) for gpu in gpus))

    def subject(self, op: object, shapes: object, dtype: object, device: object = None) -> TuningProblem:
        """The heaviest kernel of `op` applied to operands of these shapes, on torch's default device unless one is
        named.

        A tuple of ints is (M, N, K) for matmul and gemm, the shape of each operand for all else; a list holds one shape
        per operand. `device` may also name a processor, by its name or architecture; a GPU need not be there, and then
        nothing can be measured. Raises ArgumentError for what is no operator, UnsupportedTargetError for an unknown
        processor, and what the operator raises for shapes.
        """
        compiler, absent = _compiler_for(device) if self._cpu is None else (self._cpu, _absence(self._cpu))
        with looked_at(compiler):
            call = _heaviest(launches_of_operator(op, shapes, dtype, compiler))
        if isinstance(compiler, GpuKernelCompiler):
            return replace(gpu_tuning_problem(call, compiler), absent=absent)
        return replace(tuning_problem(call, compiler), absent=absent)

    def objection(self, entry: Entry) -> str | None:
        """Says of winners of single operators whether their schedules are legal here; of others nothing."""
        return objection(entry, self.subject)


def _absence(compiler: KernelCompiler) -> str:
    """Why what a CPU's compiler makes cannot run here; empty where it can."""
    return "" if compiler.target == detect() else f"this machine is no {compiler.target.name}"


def _compiler_for(named: object) -> tuple[KernelCompiler | GpuKernelCompiler, str]:
    """The compiler for a device or a processor of this name, and why nothing can run there; empty where it can."""
    named = torch.get_default_device() if named is None else named
    try:
        device = device_named(named)
    except DeviceError as error:
        if isinstance(named, torch.device):
            raise
        devices = error.hints
    else:
        return compilers.compiler_of(device), ""
    name = str(named)
    if name.lower() == compilers.kernel_compiler().target.arch.lower():
        return compilers.kernel_compiler(), ""
    try:
        wanted = gpu(name)
    except UnsupportedTargetError as error:
        raise UnsupportedTargetError(
            f"target {name!r} is neither a device nor a processor that is known",
            hints=[*(f"devices: {hint}" for hint in devices), *error.hints],
        ) from error
    for number in range(torch.cuda.device_count()):
        if gpu_arch(detect_gpu(number)) == gpu_arch(wanted):
            return compilers.gpu_compiler(f"cuda:{number}"), ""
    return _compiler_without_device(wanted.name), f"this machine has no {wanted.name}"


@cache
def _compiler_without_device(name: str) -> GpuKernelCompiler:
    return GpuKernelCompiler(gpu(name))


@contextmanager
def looked_at(compiler: KernelCompiler | GpuKernelCompiler) -> Iterator[None]:
    """Kernels whose launches are made inside are looked at, and not tuned for that where first calls are: a call that
    binds them asks for their schedules itself.
    """
    try:
        with looking():
            yield
    finally:
        if autotune.enabled:
            compiler.forget_schedules()


def heaviest_problem(structure: Structure) -> TuningProblem | None:
    """The problem of the heaviest kernel of an expression on its device; None where it runs none."""
    compiler = compilers.compiler_of(structure.device)
    with looked_at(compiler):
        launches = launches_of(planning.program_of(structure), structure, compiler)
    if not launches:
        return None
    call = _heaviest(launches)
    if isinstance(compiler, GpuKernelCompiler):
        return gpu_tuning_problem(call, compiler)
    return tuning_problem(call, compiler)


def launches_of_operator(
    op: object, shapes: object, dtype: object, compiler: PlanCompiler[Any] | None = None
) -> list[Launch]:
    """The kernels that `op` applied to operands of these shapes launches; `shapes` as in `CompilerBackend.subject`.
    Schedules are chosen by `compiler`, the CPU's by default; no kernel is compiled.

    Raises ArgumentError for what is no operator and where no kernel runs, and what the operator raises for shapes.
    """
    if not callable(op):
        raise ArgumentError(
            f"{op!r} is no operator", hints=["pass op.matmul, op.softmax, or a function made by op.kernel"]
        )
    element = fp32 if dtype is None else dtype_of(dtype)
    if element not in SUPPORTED:
        raise ArgumentError(
            f"no tensor has elements of {element}",
            hints=["tf32 is a math mode: of numerics.policy, and of op.matmul(a, b, math=...)"] * (element is tf32),
        )
    arguments = [_placeholder(shape, element) for shape in operand_shapes(op, shapes)]
    _check_count(op, shapes, arguments)
    result = op(*arguments)
    node = result[0] if isinstance(result, tuple) else result
    assert isinstance(node, Node)
    program = planning.program_of(node.structure)
    launches = launches_of(program, node.structure, compiler or compilers.kernel_compiler())
    if not launches:
        raise ArgumentError(f"{_name(op)} of {shapes} runs no kernel")
    return launches


def operand_shapes(op: object, shapes: object) -> list[tuple[int, ...]]:
    """The operand shapes that `autotune(op, shapes=...)` speaks of. Raises ArgumentError for what is none."""
    if isinstance(shapes, list):
        return [_extents(shape, shapes) for shape in shapes]
    return family_of(_name(op)).operands_of(_extents(shapes, shapes))


def _extents(shape: object, shapes: object) -> tuple[int, ...]:
    """One shape as a tuple of extents; `shapes` is what the user gave, for the message."""
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else None
    if extents is None or not all(type(extent) is int and extent >= 0 for extent in extents):
        raise ArgumentError(
            f"shapes={shapes!r} names no extents",
            hints=["a tuple of whole numbers (M, N, K for matmul), or a list with one such tuple per operand"],
        )
    return extents


def _check_count(op: Callable[..., Any], shapes: object, arguments: Sequence[object]) -> None:
    """Raises ArgumentError where `op` takes another number of operands."""
    try:
        signature = inspect.signature(op)
    except ValueError:  # a builtin function, which says no more once it is called
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ArgumentError(
            f"{_name(op)} of shapes={shapes!r}: {error}", hints=["pass a list with one shape per operand"]
        ) from error


def _name(op: object) -> str:
    return str(getattr(op, "__name__", op))


def _placeholder(shape: tuple[int, ...], dtype: DType) -> Any:
    structure = interning.buffer(shape, contiguous_strides(shape), dtype)
    return nodes.leaf_node(Placeholder(structure))


def tuned_schedule(compiler: KernelCompiler, call: Call, problem: Problem) -> Schedule | None:
    """What the tuner remembers for a call (and, while tuning is on, measures now); None where that is nothing."""
    if autotune.enabled:
        config = autotune.schedule_for(tuning_problem(call, compiler))
        return None if config.source == "default" else config.schedule
    if not autotune.remembers_anything:
        return None
    subject = compiler.subject(call)
    identity = identity_of(subject, problem, call, compiler)
    permits = partial(compiler.permits, subject, problem)
    return autotune.remembered(identity, permits, partial(tuning_problem, call, compiler))


def tuned_gpu_schedule(compiler: GpuKernelCompiler, call: Call) -> Schedule | None:
    """What the tuner remembers for a call on a GPU (and, while tuning is on, measures now); None where that is nothing,
    and for kernels that have no space.
    """
    if not (autotune.enabled or autotune.remembers_anything) or not is_tuned(compiler.subject(call)):
        return None
    problem = gpu_tuning_problem(call, compiler)
    if autotune.enabled:
        config = autotune.schedule_for(problem)
        return None if config.source == "default" else config.schedule
    return autotune.remembered(problem.identity, lambda found: not problem.space.objections(found), lambda: problem)


def _heaviest(launches: Sequence[Launch]) -> Call:
    """The call with the most work: of one that takes several launches, all of it."""
    heaviest = max(launches, key=_work)
    return heaviest.call if heaviest.whole is None else heaviest.whole


def _work(launch: Launch) -> float:
    facts = facts_of([launch])()[0]
    return facts.flops + facts.bytes


def tuning_problem(call: Call, compiler: KernelCompiler) -> TuningProblem:
    """The problem of one call, ready to tune."""
    subject = compiler.subject(call)
    workers = 1 if current_policy().fixed_order else worker_count()
    problem = subject.problem(call.shaped.extents, workers)
    parts = parts_of(call.item)
    whole = compiler.space(subject, problem)
    # The operations of a kernel over panels, one by one, would read the operand that these were made of.
    apart = parts is not None and not is_packed(call)
    space = whole if apart else whole.restricted({"fusion": [True]})
    model = compiler.model
    candidates = CpuCandidates(call, compiler, subject, problem)

    def estimates(schedules: Sequence[Schedule]) -> Estimates:
        columns = Columns.of(schedules)
        found = model.estimates(problem, columns)
        return found.taken_apart(~columns.flag("fusion"), between_s, launches) if launches else found

    between_s = _between_parts(call) / (model.machine(workers).byte_per_s["DRAM"] * workers)
    launches = 0 if parts is None else sum(isinstance(item, KernelItem) for item in parts.items) - 1
    identity = identity_of(subject, problem, call, compiler)
    return TuningProblem(
        identity,
        space,
        candidates.build,
        EstimatedSeconds(estimates),
        generator_revision(),
        candidates.prepare,
        estimated=estimates,
        family=kernel_family(problem).name,
        adopt=candidates.adopt,
        abort=candidates.abort,
        work=work_of(call, compiler, problem, space.default),
    )


def identity_of(subject: Subject, problem: Problem, call: Call, compiler: KernelCompiler) -> Identity:
    """What a tuned schedule of this call is remembered under."""
    family = kernel_family(problem)
    shape = family.shape(problem, call.shaped.extents)
    return identify(subject, shape, family.accumulation(problem), compiler.target.arch, problem.workers)


def _between_parts(call: Call) -> float:
    """Bytes that unfused parts write for each other and read again."""
    parts = parts_of(call.item)
    if parts is None:
        return 0.0
    extents = extents_of_call(call)
    inner = [v for item in parts.items if isinstance(item, KernelItem) for v in item.outputs if v not in parts.roots]
    sizes = (math.prod(extents[name] for name in parts.values[v].dims) * parts.values[v].dtype.itemsize for v in inner)
    return 2.0 * sum(sizes)
