"""Candidates of a CPU's kernel: compiled in processes beside this one, a batch at a time, and what a call's time is
judged by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tessera.backend.contract import KernelObject
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.launcher import is_decomposed
from tessera.compiler.bind.launches import Choice, Launch
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.device.kernels import KernelCompiler, useful_workers
from tessera.compiler.device.recipes import recipe
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.process.pool import CompileJob, CompilePool, compile_pool
from tessera.compiler.tune.candidates import Launched, launched_under, step_launch, worker_launch, workload_of
from tessera.errors import CompileError
from tessera.lazy.threads import worker_count
from tessera.priority import current_niceness
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import LEVELS
from tessera.scheduling.model.machine import DRAM
from tessera.tuning.measure.metrics import CallWork, Roof
from tessera.tuning.measure.workload import Case, Workload


class _Plan(NamedTuple):
    """What a schedule takes: its kernels, and its launches where it takes several."""

    jobs: tuple[str, ...]
    launched: Launched | None


class CpuCandidates:
    """The candidates of one call, compiled as far as they were asked for."""

    def __init__(self, call: Call, compiler: KernelCompiler, subject: Subject, problem: Problem) -> None:
        self._call, self._compiler, self._subject, self._problem = call, compiler, subject, problem
        self._plans: dict[Schedule, _Plan | CompileError] = {}
        self._jobs: dict[str, CompileJob] = {}
        self._objects: dict[str, KernelObject | CompileError] = {}
        self._workload: Workload | None = None
        self._pool: CompilePool | None = None

    def prepare(self, schedules: Sequence[Schedule]) -> None:
        """Compiles what the schedules need and is not compiled yet, in one go; beside a running program, of which that
        would take too much at once, one is compiled when it is built.
        """
        if not current_niceness():
            self._compile(schedules)

    def _compile(self, schedules: Sequence[Schedule]) -> None:
        plans = [self._plan(schedule) for schedule in schedules]
        keys = dict.fromkeys(key for plan in plans if isinstance(plan, _Plan) for key in plan.jobs)
        missing = [key for key in keys if key not in self._objects]
        self._pool = compile_pool()
        made = self._pool.objects([self._jobs[key] for key in missing])
        self._objects.update(zip(missing, made, strict=True))

    def build(self, schedule: Schedule) -> Case:
        """The candidate of a schedule. Raises CompileError where it does not compile."""
        self._compile([schedule])
        plan = self._plan(schedule)
        if isinstance(plan, CompileError):
            raise plan
        if self._workload is None:
            self._workload = workload_of(self._call)
        kernels = [self._object(key) for key in plan.jobs]
        if plan.launched is None:
            workers = useful_workers(self._problem, worker_count())
            return Case(self._workload, (worker_launch(self._call, kernels[0], workers),))
        steps, slots, temporaries = plan.launched
        launches = tuple(step_launch(step, kernel, slots) for step, kernel in zip(steps, kernels, strict=True))
        return Case(self._workload, launches, temporaries)

    def abort(self) -> None:
        """Ends a compilation that is going on in another thread."""
        if self._pool is not None:
            self._pool.abort()

    def adopt(self, schedule: Schedule) -> None:
        """Makes the code of a winner in this process, and keeps it on disk."""
        plan = self._plan(schedule)
        if isinstance(plan, CompileError):
            raise plan
        if plan.launched is None:
            self._compiler.ready(self._subject, schedule, self._problem)
        for step in () if plan.launched is None else plan.launched.launches:
            self._compiler.kernel(step.choice)

    def _object(self, key: str) -> KernelObject:
        made = self._objects[key]
        if isinstance(made, CompileError):
            raise made
        return made

    def _plan(self, schedule: Schedule) -> _Plan | CompileError:
        known = self._plans.get(schedule)
        if known is None:
            try:
                known = self._made(schedule)
            except CompileError as error:
                known = error
            self._plans[schedule] = known
        return known

    def _made(self, schedule: Schedule) -> _Plan:
        if not is_decomposed(self._call, schedule, self._compiler):
            subject = self._compiler.blocked(self._subject, schedule, self._problem)
            return _Plan((self._job(subject, schedule),), None)
        launched = launched_under(self._call, schedule, self._compiler)
        return _Plan(tuple(self._job(step.subject, step.schedule) for step in launched.launches), launched)

    def _job(self, subject: Subject, schedule: Schedule) -> str:
        target = self._compiler.target
        key = recipe(subject.spec, schedule, target, self._compiler.backend.version())
        self._jobs.setdefault(key, CompileJob(subject.spec, schedule, target))
        return key


def work_of(call: Call, compiler: KernelCompiler, problem: Problem, schedule: Schedule) -> CallWork:
    """What one call does, and the bandwidth of the memory that its operands come from: the nearest that holds a
    worker's share of them, or main memory where caches are cold.
    """
    choice = Choice(compiler.subject(call), schedule, problem.workers)
    facts = facts_of([Launch(call, choice)])()[0]
    rates = compiler.model.machine(problem.workers)
    if compiler.model.ceilings is None:
        reason = "this CPU's ceilings have not been measured: `tessera quickstart` measures them"
        return CallWork(facts.flops, facts.bytes, no_roof=reason)

    def roof(place: int) -> Roof:
        return Roof(LEVELS[place], rates.bandwidth(place) * problem.workers, rates.source)

    warm = rates.home(facts.bytes / problem.workers)
    return CallWork(facts.flops, facts.bytes, {"warm": roof(warm), "cold": roof(DRAM)})
