"""The problem and the schedules of a walk over rows that reduces columns, too: as of rows, which workers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tessera.scheduling.families.family import Poser
from tessera.scheduling.families.rows import space as rows
from tessera.scheduling.families.rows.posing import rows_poser
from tessera.scheduling.families.rows_and_columns.steps import rows_spec
from tessera.scheduling.language.knobs import Rule, Space
from tessera.scheduling.language.schedule import KnobValue
from tessera.scheduling.lowering.spec import RowsAndColumnsSpec
from tessera.target import Target


@dataclass(frozen=True)
class RowsAndColumnsProblem(rows.MapReduceProblem):
    """What legality and cost depend on: as of rows, whose partial results of columns are traffic of results."""


def poser(spec: RowsAndColumnsSpec, target: Target) -> Poser:
    """What poses problems for extents and workers."""
    pose = rows_poser(rows_spec(spec), target)

    def as_own(extents: Mapping[str, int], workers: int) -> RowsAndColumnsProblem:
        problem = object.__new__(RowsAndColumnsProblem)
        vars(problem).update(vars(pose(extents, workers)))
        return problem

    return as_own


RULES: Final[tuple[Rule[Any], ...]] = rows.RULES
_FIXED: Final[Mapping[str, tuple[KnobValue, ...]]] = {"parallel": ("outer",), "fusion": (True,)}


def space(problem: RowsAndColumnsProblem) -> Space[RowsAndColumnsProblem]:
    """All schedules of one walk. Workers share rows, and there is nothing to fuse otherwise."""
    knobs = (replace(knob, choices=_FIXED.get(knob.name, knob.choices)) for knob in rows.space(problem).knobs)
    return Space(tuple(knobs), RULES, problem, rows.default_schedule(problem))
