"""Kernels whose schedule says `fusion=False`: of any family, one kernel for each of its operations."""

from __future__ import annotations

from typing import Final

from tessera.rewrite.fusion.kernels import Bounds
from tessera.scheduling.families.decomposition import DecomposableCall, Decomposition, Fused, Steps

ONE_BY_ONE: Final = Bounds(limit=1)


def _applies(case: DecomposableCall) -> bool:
    return not case.schedule.get("fusion", True) and case.is_divided(ONE_BY_ONE)


UNFUSED = Decomposition(
    name="unfused",
    why="the schedule says fusion=False, as the user or the tuner wanted",
    when="schedule",
    applies=_applies,
    steps=lambda case: Steps((Fused(ONE_BY_ONE, case.schedule),)),
)
