"""What `autotune` asks of the compiler: the kernel that an operator and shapes stand for, and ready candidates."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from tessera.compiler import planning
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import Launch, PlanCompiler
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.rebind.choices import with_numbers
from tessera.compiler.tune.objections import objection
from tessera.compiler.tune.problems import identity_of, is_tuned, tuning_problem
from tessera.compiler.tune.tuner import autotune
from tessera.dtypes import SUPPORTED, DType, dtype_of, fp32, tf32
from tessera.errors import ArgumentError, DeviceError, TuneFailedError, TuneSpaceEmptyError, UnsupportedTargetError
from tessera.lazy import node as nodes
from tessera.lazy.devices import device_named
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.node import Node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure, contiguous_strides
from tessera.lazy.symbols.integers import is_symbolic, value_of
from tessera.ops.record import family_of
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.sources import ChosenSchedule
from tessera.target import detect, detect_gpu, gpu
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.online.mode import looking
from tessera.tuning.online.ticket import TuningWarning
from tessera.tuning.options import options
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.processors import arch_of


class CompilerBackend:
    """The `TuningBackend` of this process's compilers; with `cpu` of a compiler for another CPU, for which problems are
    posed that nobody can measure here.
    """

    def __init__(self, cpu: DeviceCompiler | None = None) -> None:
        self._cpu = cpu

    @property
    def archs(self) -> tuple[str, ...]:
        """The CPU and the GPUs."""
        gpus = [arch_of(detect_gpu(number)) for number in range(torch.cuda.device_count())]
        if self._cpu is None and detect().unsupported_reason():  # no compiler, and so no winners
            return (arch_of(detect()), *gpus)
        return ((self._cpu or compilers.kernel_compiler()).arch, *gpus)

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
        return replace(tuning_problem(call, compiler), absent=absent)

    def objection(self, entry: Entry) -> str | None:
        """Says of winners of single operators whether their schedules are legal here; of others nothing."""
        return objection(entry, self.subject)


def _absence(compiler: DeviceCompiler) -> str:
    """Why what a CPU's compiler makes cannot run here; empty where it can."""
    return "" if compiler.target.with_core(None) == detect() else f"this machine is no {compiler.target.name}"


def _compiler_for(named: object) -> tuple[DeviceCompiler, str]:
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
    cpu = compilers.kernel_compiler()
    if name.lower() in (cpu.arch, cpu.target.arch.lower()):
        return cpu, ""
    try:
        wanted = gpu(name)
    except UnsupportedTargetError as error:
        raise UnsupportedTargetError(
            f"target {name!r} is neither a device nor a processor that is known",
            hints=[*(f"devices: {hint}" for hint in devices), *error.hints],
        ) from error
    for number in range(torch.cuda.device_count()):
        if arch_of(detect_gpu(number)) == arch_of(wanted):
            return compilers.gpu_compiler(f"cuda:{number}"), ""
    return _compiler_without_device(wanted.name), f"this machine has no {wanted.name}"


@cache
def _compiler_without_device(name: str) -> DeviceCompiler:
    return DeviceCompiler(gpu(name))


@contextmanager
def looked_at(compiler: DeviceCompiler) -> Iterator[None]:
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
    launches = _launches(structure, compiler)
    if not launches:
        return None
    call = _heaviest(launches)
    return tuning_problem(call, compiler)


def _launches(structure: Structure, compiler: DeviceCompiler) -> list[Launch]:
    with looked_at(compiler):
        return launches_of(planning.program_of(structure), structure, compiler)


def tune(structure: Structure, budget_s: float | None) -> None:
    """As `entry.tune`."""
    compiler = compilers.compiler_of(structure.device)
    launches = sorted(_launches(structure, compiler), key=_work, reverse=True)
    calls = [launch.call if launch.whole is None else launch.whole for launch in launches]
    problems = [tuning_problem(call, compiler) for call in calls if is_tuned(compiler.subject(call))]
    ends = None if budget_s is None else time.monotonic() + budget_s
    for problem in {problem.identity: problem for problem in problems}.values():
        left = None if ends is None else ends - time.monotonic()
        if left is not None and left <= 0:
            return
        try:
            autotune.solve(problem, options(budget_s=left))
        except (TuneFailedError, TuneSpaceEmptyError) as error:
            warnings.warn(f"{problem.identity} is not tuned: {error}", TuningWarning, stacklevel=2)


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


def tuned_schedule(compiler: DeviceCompiler, call: Call, problem: Problem) -> ChosenSchedule | None:
    """What the tuner remembers for a call (and, while tuning is on, measures now); None where that is nothing, and for
    kernels that are not tuned. While it is off, extents may be symbolic.
    """
    if not (autotune.enabled or autotune.remembers_anything):
        return None
    subject = compiler.subject(call)
    if not is_tuned(subject):
        return None
    if autotune.enabled:
        config = autotune.schedule_for(tuning_problem(call, compiler))
        return None if config.source == "default" else ChosenSchedule(config.schedule, config.chosen_by)
    identity = identity_of(subject, problem, call, compiler)
    permits = partial(compiler.permits, subject, problem)
    sizes = identity.shape
    if any(map(is_symbolic, sizes)):
        identity, call = replace(identity, shape=tuple(map(value_of, sizes))), with_numbers(call, value_of)
    return autotune.remembered(identity, permits, partial(tuning_problem, call, compiler), sizes)


def is_settled() -> bool:
    """Whether `tuned_schedule` gives the same again until the tuner tells of a change."""
    return not autotune.enabled


def _heaviest(launches: Sequence[Launch]) -> Call:
    """The call with the most work: of one that takes several launches, all of it."""
    heaviest = max(launches, key=_work)
    return heaviest.call if heaviest.whole is None else heaviest.whole


def _work(launch: Launch) -> float:
    facts = facts_of([launch])()[0]
    return facts.flops + facts.bytes
