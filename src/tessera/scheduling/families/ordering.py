"""Spaces whose schedules all add in the same order, for `numerics.policy("deterministic")`.

A product sums each element of its result in one register, step after step of K, and adds up blocks of K in turn: the
depth of a block decides the order, its height and width do not. A reduction along a row has one partial sum for each
lane of a step, so the step's width decides; one across rows adds row after row. Attention adds up the weights of a
register tile, then tile after tile and block after block of keys. Whether neighbours are fused decides
where results are rounded to their dtype.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tessera.scheduling.families.family import Problem
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.knobs import Rule, Space
from tessera.scheduling.language.schedule import KnobValue, Schedule

AnyProblem = TypeVar("AnyProblem", bound=Problem)


def sum_order(schedule: Schedule, problem: Problem) -> tuple[KnobValue, ...]:
    """What of a schedule decides the bits of a result: schedules for which it is equal give equal bits."""
    return kernel_family(problem).sum_order(schedule, problem)


def keeping_order(space: Space[AnyProblem]) -> Space[AnyProblem]:
    """The schedules of `space` that add in the order of its default; rule `fixed-order` drops the others."""
    default = space.default
    wanted = sum_order(default, space.problem)
    rule: Rule[AnyProblem] = Rule(
        "fixed-order",
        "under this numerics policy the order of sums depends on the shapes alone, not on the schedule",
        lambda schedule, problem: sum_order(schedule, problem) == wanted,
    )
    tiles = [
        tile
        for tile in space.by_name["tile"].choices
        if rule.holds(default.replace(tile=tile), space.problem) or tile == default["tile"]
    ]
    kept = {"tile": tuple(tiles), "fusion": (default["fusion"],)}
    knobs = tuple(replace(knob, choices=kept.get(knob.name, knob.choices)) for knob in space.knobs)
    return Space(knobs, space.rules + (rule,), space.problem, default)  # noqa: RUF005 - mypy reads no starred generics
