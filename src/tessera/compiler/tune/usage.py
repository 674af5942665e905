"""What a run used, as tuning problems: from the kernels that a profile or a trace timed, and what their plans compute.

The plans are bound again here, without compiling: the steps of each are those that ran, as long as the same schedules
are chosen. Several steps of one call (a product in parts) are one use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import polars
from polars import col

from tessera.compiler import planning
from tessera.compiler.bind.binding import steps_of
from tessera.compiler.bind.launches import AnyLaunch, Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.expressions import structure_of
from tessera.compiler.tune.problems import tuning_problem
from tessera.errors import ProfileError, TesseraError
from tessera.lazy.policy import Policy, current_policy, policy
from tessera.profiling.session.sessions import Session
from tessera.profiling.trace import reading
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.workload import Case
from tessera.tuning.store.identity import Identity
from tessera.tuning.uses import Usage, Use

_CHANGED = "other schedules are chosen here than when this ran"
_FORGOTTEN = "their plans were forgotten before the profile ended"


class Timed(NamedTuple):
    """One kernel that ran: step `step` of plan `plan`, what reports call it, and its seconds."""

    plan: int
    step: int
    label: str
    seconds: float


@dataclass
class _Total:
    label: str
    problem: TuningProblem
    seconds: float = 0.0
    calls: int = 0


def usage_of_session(session: Session) -> Usage:
    """What ran in a session that has ended."""
    timed = [
        Timed(record.plan_id, record.step_id, record.operator, record.duration_us / 1e6)
        for record in session.records()
        if record.kind == "kernel"
    ]
    return usage(timed, {number: tell() for number, tell in session.recording.plans.items()})


def usage_of_trace(path: Path) -> Usage:
    """What ran in the session that `profiler.timeline(path)` wrote.

    Raises ProfileError (E_PROFILE) for a file that cannot be read, is no such trace, or holds no kernels of a CPU.
    """
    found = reading.read(path)
    if not isinstance(plans := found.metadata.get("plans"), dict) or found.metadata["source"] != "tessera":
        raise ProfileError(
            f"{path} does not say what its kernels compute",
            hints=["profiler.timeline(path) and profile.parquet(path) write files that do"],
        )
    kernels = found.events.filter(col("kind") == "kernel").drop_nulls(["plan_id", "step_id"])
    told = kernels.select("plan_id", "step_id", col("operator").cast(polars.String), col("dur_ns") / 1e9).collect()
    timed = [Timed(*row) for row in told.iter_rows()]
    if not timed:
        raise ProfileError(f"{path} holds no kernel that ran on a CPU", hints=["evaluate something in the session"])
    return usage(timed, {int(number): plan for number, plan in plans.items()})


def usage(timed: Iterable[Timed], plans: Mapping[int, Any]) -> Usage:
    """Kernels that ran as uses, hottest first; `plans` holds their expressions by number.

    Kernels of equal identity are one use, whichever plans they ran in.
    """
    by_plan: dict[int, list[Timed]] = defaultdict(list)
    for each in timed:
        by_plan[each.plan].append(each)
    totals: dict[Identity, _Total] = {}
    untuned: dict[str, float] = defaultdict(float)
    for number, ran in by_plan.items():
        steps = _steps(plans.get(number))
        for each in ran:
            step = steps if isinstance(steps, str) else _step(steps, each)
            if isinstance(step, str):
                untuned[step] += each.seconds
                continue
            total = totals.setdefault(step.problem.identity, _Total(each.label, step.problem))
            total.seconds += each.seconds
            total.calls += step.leads
    uses = [Use(total.label, total.problem, total.seconds, total.calls) for total in totals.values()]
    hottest = sorted(uses, key=lambda use: (-use.seconds, str(use.problem.identity)))
    return Usage(tuple(hottest), dict(untuned))


class _Step(NamedTuple):
    """A step that can be tuned: its label, the problem that it is part of, and whether it is the first step of it."""

    label: str
    problem: TuningProblem
    leads: bool


def _step(steps: list[_Step | str], ran: Timed) -> _Step | str:
    """The step that ran; why there is none to tune."""
    if not 0 <= ran.step < len(steps):
        return _CHANGED
    step = steps[ran.step]
    return step if isinstance(step, str) or step.label == ran.label else _CHANGED


def _steps(expression: Any) -> list[_Step | str] | str:
    """The steps of a plan, each ready to tune or with the reason why it is not; why no step of it is."""
    if expression is None:
        return _FORGOTTEN
    if isinstance(expression, Mapping) and "unavailable" in expression:
        return str(expression["unavailable"])
    try:
        asked, numerics = structure_of(expression)
        with policy(numerics.mode, tf32=numerics.tf32):
            structure = planning.as_planned(asked).structure
            compiler = compilers.compiler_of(structure.device)
            if compiler.target.kind == "gpu":
                return "kernels of GPUs are not timed by profiles"
            launches = steps_of(planning.program_of(structure), structure, compiler)
            labels = [facts.operator for facts in facts_of(launches)()]
            posed: dict[int, TuningProblem | str] = {}
            return [_posed(*each, compiler, posed) for each in zip(launches, labels, strict=True)]
    except TesseraError as error:
        return error.message


def _posed(
    launch: AnyLaunch, label: str, compiler: DeviceCompiler, posed: dict[int, TuningProblem | str]
) -> _Step | str:
    """A launch as a step that can be tuned, or why it cannot; `posed` holds the problems of the calls so far."""
    if not isinstance(launch, Launch):
        return "calls of libraries"
    call = launch.call if launch.whole is None else launch.whole
    leads = id(call) not in posed
    if leads:
        try:
            posed[id(call)] = _under(current_policy(), tuning_problem(call, compiler))
        except TesseraError as error:
            posed[id(call)] = error.message
    problem = posed[id(call)]
    return problem if isinstance(problem, str) else _Step(label, problem, leads)


def _under(numerics: Policy, problem: TuningProblem) -> TuningProblem:
    """The problem with candidates that are built under a policy, whichever is in force when they are."""

    def build(schedule: Schedule) -> Case:
        with policy(numerics.mode, tf32=numerics.tf32):
            return problem.build(schedule)

    return replace(problem, build=build)


def require(found: Usage, path: Path) -> Usage:
    """What was found; ProfileError where there is nothing to tune in it."""
    if not found.uses:
        hints = [f"{seconds:.3g} s: {reason}" for reason, seconds in found.untuned.items()]
        raise ProfileError(f"nothing that ran in {path} can be tuned", hints=hints or ["it evaluated no kernel"])
    return found
