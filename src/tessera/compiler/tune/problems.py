"""Tuning problems: a call's space, what its cost model expects, what it does, and its candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.constants import is_packed
from tessera.compiler.bind.launches import Choice, Launch
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.refusion import parts_of
from tessera.compiler.device.compiler import AnySpace, DeviceCompiler
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.program import KernelItem
from tessera.compiler.tune.candidates import Candidates
from tessera.compiler.tune.identities import identify
from tessera.compiler.tune.workloads import extents_of_call
from tessera.errors import CompileError, UnsupportedTargetError
from tessera.scheduling.families.backends import BACKEND
from tessera.scheduling.families.family import Problem
from tessera.scheduling.families.legality import FUSION
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.estimate import Estimates
from tessera.tuning.interfaces import EstimatedSeconds, TuningProblem
from tessera.tuning.measure.metrics import CallWork, Roof
from tessera.tuning.store.identity import Identity


def is_tuned(subject: Subject) -> bool:
    """Whether a kernel has a space and a cost model: on GPUs all have but reductions in chunks."""
    return subject.kernels.is_modelled and (subject.kernels.tunes_steps or not subject.item.is_step)


def tuning_problem(call: Call, compiler: DeviceCompiler) -> TuningProblem:
    """The problem of one call, ready to tune. Raises CompileError for a kernel that is not tuned."""
    subject, problem = compiler.subject(call), compiler.problem(call)
    _require_tuned(subject)
    space = _searched(call, compiler, subject, problem)
    candidates, rates = Candidates(call, compiler), compiler.rates
    launches, between_s = _taken_apart(call, compiler, problem) if FUSION in space.by_name else (0, 0.0)

    def estimates(schedules: Sequence[Schedule]) -> Estimates:
        if not launches:
            return rates.estimates(problem, schedules)
        columns = Columns.of(schedules)
        return rates.estimates(problem, columns).taken_apart(~columns.flag(FUSION), between_s, launches)

    return TuningProblem(
        identity_of(subject, problem, call, compiler),
        space,
        candidates.build,
        EstimatedSeconds(estimates),
        compiler.planner.generator,
        candidates.prepare,
        estimated=estimates,
        family=subject.kernels.name,
        adopt=candidates.adopt,
        abort=candidates.abort,
        work=work_of(call, compiler, problem, space.default),
    )


def _require_tuned(subject: Subject) -> None:
    name = subject.item.name
    if subject.item.is_step and not subject.kernels.tunes_steps:
        raise CompileError(f"kernel {name}: reductions in chunks have one schedule, and are not tuned")
    if not subject.kernels.is_modelled:
        kernels = kernel_family(subject.spec).kernels
        raise CompileError(f"kernel {name}: {kernels} has no cost model on GPUs, and is not tuned there")


def _searched(call: Call, compiler: DeviceCompiler, subject: Subject, problem: Problem) -> AnySpace:
    """The schedules that are looked at."""
    space = compiler.space(subject, problem)
    searched = subject.kernels.searched(space, problem)
    choices: dict[str, Sequence[KnobValue]] = {
        name: values for name, values in searched.items() if name not in subject.pins
    }
    if BACKEND in space.by_name and BACKEND not in subject.pins:
        choices[BACKEND] = compiler.planner.backends
    if FUSION in space.by_name and (parts_of(call.item) is None or is_packed(call)):
        # The operations of a kernel over panels, one by one, would read the operand that these were made of.
        choices[FUSION] = [True]
    return space.restricted(choices) if choices else space


def _taken_apart(call: Call, compiler: DeviceCompiler, problem: Problem) -> tuple[int, float]:
    """What a kernel takes more whose operations run one by one: launches, and seconds for what these write for each
    other.
    """
    parts, model = parts_of(call.item), compiler.model
    if parts is None or model is None:
        return 0, 0.0
    launches = sum(isinstance(item, KernelItem) for item in parts.items) - 1
    extents = extents_of_call(call)
    inner = [v for item in parts.items if isinstance(item, KernelItem) for v in item.outputs if v not in parts.roots]
    sizes = (math.prod(extents[name] for name in parts.values[v].dims) * parts.values[v].dtype.itemsize for v in inner)
    return launches, 2.0 * sum(sizes) / (model.machine(problem.workers).byte_per_s["DRAM"] * problem.workers)


def identity_of(subject: Subject, problem: Problem, call: Call, compiler: DeviceCompiler) -> Identity:
    """What a tuned schedule of this call is remembered under."""
    kernels = subject.kernels
    shape = kernels.shape(problem, call.shaped.extents)
    return identify(subject, shape, kernels.accumulation(problem), compiler.arch, problem.workers)


def work_of(call: Call, compiler: DeviceCompiler, problem: Problem, schedule: Schedule) -> CallWork:
    """What one call does, and the bandwidth of the memory that its operands come from: the nearest that holds them, or
    main memory where caches are cold.
    """
    facts = facts_of([Launch(call, Choice(compiler.subject(call), schedule, problem.workers, "given"))])()[0]
    is_gpu = compiler.target.kind == "gpu"
    try:
        warm, cold = (Roof(*each) for each in compiler.rates.bandwidths(facts.bytes, problem.workers))
    except UnsupportedTargetError as error:
        return CallWork(facts.flops, facts.bytes, no_roof=error.message, is_gpu=is_gpu)
    return CallWork(facts.flops, facts.bytes, {"warm": warm, "cold": cold}, is_gpu=is_gpu)
