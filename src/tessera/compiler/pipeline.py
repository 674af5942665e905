"""The way from lazy tensors to results: the plan cache, and the evaluator that uses it.

This module stands on top of the compiler, and wires it: compilers ask the tuner for schedules, the tuner has plans
bound anew where schedules changed, profiles ask what plans compute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

from tessera import settings
from tessera.compiler.bind.binding import bind, placed
from tessera.compiler.bind.launches import Choice, kernel_launches
from tessera.compiler.bind.overwriting import Target, overwriting
from tessera.compiler.device.compiler import Remembered
from tessera.compiler.device.compilers import ask_for_schedules, compiler_of, forget_schedules
from tessera.compiler.graph.expressions import expression_of
from tessera.compiler.planning import as_planned, lock, program_of
from tessera.compiler.process.collection import collecting_later
from tessera.compiler.rebind.choices import ChoosingCompiler
from tessera.compiler.rebind.plans import PlanTemplate
from tessera.compiler.tune.tuner import autotune
from tessera.compiler.tune.tuning import is_settled, tuned_schedule
from tessera.compiler.tune.warming import WarmingPlan, running
from tessera.errors import ProfileError
from tessera.lazy.devices import CPU, is_mesh
from tessera.lazy.node import Node, joined
from tessera.lazy.policy import FAST, Policy, current_policy, take_detour
from tessera.lazy.structures.structure import Plan, Structure
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.threads import worker_count
from tessera.profiling.recording import facts
from tessera.runtime.plans.plan import BoundPlan
from tessera.sharding.execution import ShardedPlan


class PlanKey(NamedTuple):
    """What a plan is bound for: `threads` are those that it may use, None on a GPU, where it uses none."""

    structure: Structure
    policy: Policy
    threads: int | None


def plan_key(structure: Structure) -> PlanKey:
    """What a plan of the structure that runs here and now has to be bound for."""
    return PlanKey(structure, current_policy(), worker_count() if structure.device in (None, CPU) else None)


_bound: OrderedDict[PlanKey, tuple[Plan, list[Choice]]] = OrderedDict()
"""Longest bound first: the plan, and the choices that it launches."""


def _bind(asked: Structure) -> tuple[Plan, list[Choice]]:
    if is_mesh(asked.device):
        return ShardedPlan(asked), []
    structure = as_planned(asked).structure
    order = structure.post_order()
    program = program_of(structure, order)
    compiler = compiler_of(structure.device)
    warmup = autotune.warmup
    if warmup is None:
        return bind(program, order, compiler)
    compiler.forget_schedules()  # so that every kernel asks the tuner, and the tuner sees whose calls launch it
    with warmup.collecting() as tickets:
        plan, choices = bind(program, order, compiler)
    return (WarmingPlan(plan, tickets, warmup) if tickets else plan), choices


class PlanSource(Protocol):
    """What gives plans in the place of the plan cache."""

    def plan(self, structure: Structure) -> Plan:
        """The plan of a structure under the numerics policy in force."""


_source: PlanSource | None = None


@contextmanager
def planned_by(source: PlanSource) -> Iterator[None]:
    """Has `source` give the plans of everything that any thread evaluates, until the block ends. Inside another such
    block, this one's `source` alone is asked.
    """
    global _source  # noqa: PLW0603 - the process has one
    outer, _source = _source, source
    take_detour(True, "planned by")
    try:
        yield
    finally:
        _source = outer
        take_detour(outer is not None, "planned by")


def plan(structure: Structure) -> Plan:
    """The plan of `structure` under the numerics policy in force: that of `planned_by`'s source, else the usual one."""
    source = _source
    return usual_plan(structure) if source is None else source.plan(structure)


def usual_plan(structure: Structure) -> Plan:
    """The plan of the plan cache, bound if need be.

    The cache is bounded: the plan that was bound longest ago goes first.
    """
    key = plan_key(structure)
    with lock:
        known = _bound.get(key)
        if known is None:
            first_call = autotune.enabled and autotune.warmup is None
            with collecting_later(not first_call):  # tuning takes minutes
                known = _bind(structure)
            _bound[key] = known
            if isinstance(known[0], WarmingPlan):
                known[0].when_settled(partial(_forget, key))
            while len(_bound) > settings.current().plan_cache_size:
                oldest, _ = _bound.popitem(last=False)
                oldest.structure.plan = None
        if key.policy == FAST:
            structure.plan = known[0]
        return known[0]


def plan_over(asked: Structure, targets: Mapping[int, Target]) -> Plan:
    """A plan of a structure that writes outputs, by their numbers, to memory of its leaves, or to that of leaves past
    them, as far as it may be; of these outputs `run` gives the leaf itself. The caller keeps it, as long as the usual
    plan is what it was.
    """
    with lock:
        structure = as_planned(asked).structure
        order = structure.post_order()
        compiler = compiler_of(structure.device)
        launches, memory = placed(program_of(structure, order), order, compiler, targets)
        return compiler.plan(launches, overwriting(launches, memory, targets))


def plan_template(asked: Structure, targets: Mapping[int, Target], assumptions: Assumptions) -> PlanTemplate | None:
    """What plans of structures that differ in sizes alone have in common, of one whose leaves' sizes are symbolic, for
    outputs as `plan_over` takes them; None where there is no such, as for what is not of a CPU.
    """
    with lock:
        structure = as_planned(asked).structure
        order = structure.post_order()
        compiler = compiler_of(structure.device)
        if autotune.enabled or structure.device not in (None, CPU) or symbolic_form(structure, order).program is None:
            return None
        choosing = ChoosingCompiler(compiler)
        launches, memory = placed(program_of(structure, order), order, choosing, targets)
        if not choosing.has_chosen(kernel_launches(launches)):
            return None
        memory = overwriting(launches, memory, targets) if targets else memory
        if any(each.depends_on_sizes for _, each in memory.derived):
            return None
        return PlanTemplate(assumptions, launches, memory, choosing.decisions, compiler)


def _forget(key: PlanKey, plan: Plan) -> None:
    """Has a structure bound anew at its next evaluation, if this is still its plan."""
    with lock:
        known = _bound.get(key)
        if known is not None and known[0] is plan:
            del _bound[key]
            if key.structure.plan is plan:
                key.structure.plan = None


def launched(structure: Structure) -> list[Choice]:
    """What the plan of a structure launches, in order; nothing without a plan."""
    with lock:
        known = _bound.get(plan_key(structure))
        return [] if known is None else list(known[1])


def forget_plans() -> None:
    """Empties the plan cache: schedules are chosen anew from the next evaluation on."""
    with lock:
        for key in _bound:
            key.structure.plan = None
        _bound.clear()
        forget_schedules()


def evaluate(nodes: Sequence[Node]) -> None:
    """The evaluator that the lazy layer calls for nodes without a plan."""
    structure, leaves = nodes[0].state if len(nodes) == 1 else joined(nodes)
    for node, leaf in zip(nodes, plan(structure).run(leaves), strict=True):
        node.store(leaf)


def _expressions(numbers: Iterable[int]) -> dict[int, Callable[[], dict[str, Any]]]:
    """What plans of the cache compute, by their numbers: for profiles, which know no structures."""
    with lock:
        plans = {key: running(known) for key, (known, _) in _bound.items()}
    keys = {known.number: key for key, known in plans.items() if isinstance(known, BoundPlan)}
    return {number: partial(_expression, keys[number]) for number in numbers if number in keys}


def _expression(key: PlanKey) -> dict[str, Any]:
    try:
        return expression_of(key.structure, key.policy)
    except ProfileError as error:
        return {"unavailable": error.message}


facts.told_by(_expressions)
ask_for_schedules(Remembered(tuned_schedule, is_settled))
autotune.when_changed(forget_plans)
