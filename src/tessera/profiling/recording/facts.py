"""What reports say about the steps of plans, by plan and step number.

Facts may be given as a function: binding a plan is on the user's path, counting its operations is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tessera.system import forks

Traffic: TypeAlias = tuple[tuple[str, float], ...]
"""Bytes that a kernel finds in and writes to each memory level, by its name ("L1" to "DRAM"), and `SCRATCH`: the
scratch memory that its workers use. A level that the cost model does not count for a kernel is missing.
"""

SCRATCH: Final = "scratch"


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the compiler knows about one step of a plan, for reports.

    `operator` is the label users read (`matmul`, or `matmul+gelu` when `fused` names more than one operator); `flops`
    and `bytes` are the algorithm's own counts for the bound extents (bytes: operands read once, results written
    once), not what the hardware moved. `dtype` is the name of the element type that the arithmetic's peak depends on.
    `backend` is "generated" for kernels of Tessera, "library" for calls of a library. `rewrites` names the rules that
    made the kernel what it is, in order. `traffic` is the cost model's estimate of what moves between memory levels,
    and scratch memory; empty where there is no model. `schedule_source` says who chose the schedule.
    """

    operator: str
    kernel_name: str
    flops: float
    bytes: float
    dtype: str
    schedule: str = ""
    fused: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    backend: str = "generated"
    rewrites: tuple[str, ...] = ()
    traffic: Traffic = ()
    schedule_source: str = ""


FactsSource = Callable[[], Sequence[StepFacts]] | Sequence[StepFacts]

_facts: dict[int, FactsSource] = {}
_retired: list[int] = []
_kept = 0
_lock = forks.lock()

Expression: TypeAlias = Callable[[], dict[str, Any]]
"""Gives, as plain JSON values, what a plan computes (`compiler/graph/expressions.py`), or `{"unavailable": reason}`."""

_tellers: list[Callable[[Iterable[int]], Mapping[int, Expression]]] = []


def told_by(tell: Callable[[Iterable[int]], Mapping[int, Expression]]) -> None:
    """Has `tell` say what plans compute: of the numbers given those that it knows. The compiler calls this."""
    _tellers.append(tell)


def register_plan(plan_id: int, steps: FactsSource) -> None:
    """Makes the facts of a plan's steps known. Called once, before the plan first runs."""
    _facts[plan_id] = steps


def retire_plan(plan_id: int) -> None:
    """The plan is gone; its facts go too, once no session is left that may hold records of it.

    Called from finalizers: it only appends to a list.
    """
    if _kept:
        _retired.append(plan_id)
    else:
        _facts.pop(plan_id, None)


def keep() -> None:
    """A session begins: facts of plans that go from now on are kept until `release`."""
    global _kept  # noqa: PLW0603 - the process has one
    with _lock:
        _kept += 1


def release() -> None:
    """A session has read its facts."""
    global _kept  # noqa: PLW0603 - the process has one
    with _lock:
        _kept -= 1
        if not _kept:
            while _retired:
                _facts.pop(_retired.pop(), None)


def of_plan(plan_id: int) -> Sequence[StepFacts]:
    """The facts of a plan's steps, in order; empty when nobody registered any."""
    steps = _facts.get(plan_id, ())
    return steps() if callable(steps) else steps


def expressions(plan_ids: Iterable[int]) -> dict[int, Expression]:
    """What plans compute, by number; those that were forgotten meanwhile are missing."""
    numbers = list(plan_ids)
    return {number: told for tell in _tellers for number, told in tell(numbers).items()}


def choose(steps: Sequence[StepFacts], plan_id: int, step_id: int) -> StepFacts:
    """The facts of one step among its plan's; when nobody registered any, a label of numbers and no counts."""
    if step_id < len(steps):
        return steps[step_id]
    label = f"plan {plan_id} step {step_id}"
    return StepFacts(operator=label, kernel_name=label, flops=0.0, bytes=0.0, dtype="")
