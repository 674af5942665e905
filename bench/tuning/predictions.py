"""Tables under cost models: the tuning problem of each, with predictions that do not rest on what it holds.

Defaults and estimates are today's, of the table's machine under the table's ceilings, whatever machine this is; where a
table's problem is not posed any more they are the ones that were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import torch

from bench.tuning.problems import PROBLEMS, Problem
from bench.tuning.strategies import Case
from bench.tuning.table import Table
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.device.kernels import KernelCompiler
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.errors import ScheduleError
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimate, Estimates
from tessera.target import Ceilings, Target, detect
from tessera.tuning.interfaces import EstimatedSeconds, TuningProblem
from tessera.tuning.measure.workload import Case as Candidate
from tessera.tuning.model.learned import Learned
from tessera.tuning.model.registry import cost_model, under
from tessera.tuning.model.ridge import MeasuredSchedule
from tessera.tuning.store.identity import Identity

LEARNED = "learned"
WITHOUT = "learned without the operator"
FITTED = (LEARNED, WITHOUT)
MODELS = ("roofline", "hardware", *FITTED)
"""The cost models by name: fitted ones have not seen the shape that they are judged by, or the whole operator."""


def problem_of(table: Table) -> TuningProblem:
    """The tuning problem of a table, over its space."""
    posed = next((found for problem in PROBLEMS if (found := _posed(problem, table)) is not None), None)
    if posed is None:
        recorded = _Recorded(table)
        seconds = EstimatedSeconds(recorded)
        about = table.about
        posed = TuningProblem(
            about.identity,
            table.space,
            _not_built,
            seconds,
            about.provenance.generator,
            estimated=recorded,
            family=about.family,
        )
    return replace(posed, space=table.space_from(posed.space.default))


def _posed(problem: Problem, table: Table) -> TuningProblem | None:
    """The problem as the compiler poses it for the table's machine, where it is the one that the table is about."""
    if problem.name != table.about.name:
        return None
    with _threads(table.about.threads):
        posed = problem.posed(_backend(table)).problem
    known = set(posed.space.default) == set(table.about.default)
    return posed if posed.identity == table.about.identity and known else None


def _backend(table: Table) -> CompilerBackend:
    """The compiler for the machine that recorded a table, with the table's ceilings; for this machine where the table
    names none.
    """
    measured = table.about.ceilings
    return CompilerBackend(_compiler(table.target or detect(), None if measured is None else json.dumps(measured)))


@cache
def _compiler(target: Target, ceilings: str | None) -> KernelCompiler:
    compiler = KernelCompiler(target, LLVMBackend())
    compiler.model = RooflineModel(None if ceilings is None else Ceilings.from_json(ceilings), target)
    return compiler


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch's number of threads, for as long as a problem is posed."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _not_built(schedule: Schedule) -> Candidate:
    raise ScheduleError(f"{schedule} is of another machine's table, and cannot be built here")


class _Recorded:
    """Looks estimates up."""

    def __init__(self, table: Table) -> None:
        self._records = table.by_schedule

    def __call__(self, schedules: Sequence[Schedule]) -> Estimates:
        return Estimates.of([self._estimate(schedule) for schedule in schedules])

    def _estimate(self, schedule: Schedule) -> Estimate:
        record = self._records.get(schedule)
        if record is None or record.estimated_s is None:
            return Estimate(float("inf"), "unknown", {})
        return Estimate(record.estimated_s, "unknown", record.terms)


Pose: TypeAlias = Callable[[Table], TuningProblem]


def cases(
    tables: Sequence[Table],
    model: str,
    pose: Pose = problem_of,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Case]:
    """The tables with the predictions of one of `MODELS`; fitted ones from a fit of their own for each table."""
    problems = [pose(table) for table in tables]
    if model not in FITTED:
        shared = cost_model(model)
        return [Case(table, under(problem, shared)) for table, problem in zip(tables, problems, strict=True)]
    taught = [sample for table, problem in zip(tables, problems, strict=True) for sample in samples(table, problem)]
    found = []
    for table, problem in zip(tables, problems, strict=True):
        progress(f"{model}: fitted without {table.about.name}")
        unseen = hidden(tables, table, whole=model == WITHOUT)
        kin = [sample for sample in taught if sample.family == problem.family]
        fitted = Learned.fitted(kin, lambda identity, unseen=unseen: identity in unseen)  # type: ignore[misc]
        found.append(Case(table, under(problem, fitted)))
    return found


def hidden(tables: Sequence[Table], tested: Table, whole: bool) -> set[Identity]:
    """The identities that a fit may not see which predicts a table: its shape of its operator, of whatever dtype, or
    the `whole` operator.
    """
    kin = [table.about for table in tables if table.about.operator == tested.about.operator]
    return {about.identity for about in kin if whole or about.identity.shape == tested.about.identity.shape}


def samples(table: Table, problem: TuningProblem) -> Iterator[MeasuredSchedule]:
    """What a table teaches: its schedules' medians beside the estimates of the analytical model."""
    schedules, about = list(table.seconds), (table.about.identity, problem.family, problem.space.default)
    for schedule, found in zip(schedules, problem.estimates(schedules), strict=True):
        yield MeasuredSchedule(*about, schedule, found.seconds, found.terms, table.seconds[schedule])
