"""Which schedule a walk over keys or queries has by default, and which are worth a look, by its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tessera.scheduling.families.attention.gpu.cost import Walk
from tessera.scheduling.families.attention.gpu.estimate import WalkEstimate, estimate_walk
from tessera.scheduling.families.attention.parts import PARTS
from tessera.scheduling.families.family import GpuModel
from tessera.scheduling.language.knobs import Rule
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_machine import GpuMachine, gpu_machine
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.target import Target

SAME: Final = 1.20
"""Estimates that differ by less say nothing: the start that stands first is taken. The model meets sixteen attentions
that an H100 computed by 4 % on average, and by 11 % at worst; its gradient by up to 19 %."""


@dataclass(frozen=True)
class WalkModel:
    """The model of one family's schedules. `walk` says what a schedule does, `starts` gives the legal known good ones,
    the best first, at least one, and `more` the others that are worth a look.
    """

    problem: type[Any]
    walk: Callable[[Any, Schedule], Walk]
    starts: Callable[[Any], Sequence[Schedule]]
    more: Callable[[Any], Iterator[Schedule]]

    def estimate(
        self, problem: Any, schedule: Schedule, rates: GpuMachine, taken: BlockResources | None = None
    ) -> WalkEstimate:
        """What a legal schedule costs."""
        return estimate_walk(problem, self.walk(problem, schedule), schedule, rates, taken)

    def chosen(self, problem: Any, rates: GpuMachine) -> WalkEstimate:
        """The start that a problem has by default; where it has to have its keys in parts, in as many as are best."""
        found = [self.estimate(problem, start, rates) for start in self.starts(problem)]
        launch = rates.constants.launch_s  # alike for all
        least = min(each.seconds for each in found) - launch
        taken = next(each for each in found if each.seconds - launch <= SAME * least)
        if taken.schedule.get(PARTS, 1) == 1:
            return taken
        whole = taken.schedule.replace(**{PARTS: 1})
        same = (each for each in found if each.schedule.replace(**{PARTS: 1}) == whole)
        return min(same, key=lambda each: each.seconds)

    def default(self, problem: Any, like: Any, rules: Sequence[Rule[Any]]) -> Schedule:
        """What is chosen for a problem `like` this one, of about its size, so that many share a choice; what is chosen
        for itself where that breaks one of the rules.
        """
        shared = _chosen(self, like)
        return shared if all(rule.holds(shared, problem) for rule in rules) else _chosen(self, problem)

    def best(self, problem: Any, count: int, rates: GpuMachine) -> list[WalkEstimate]:
        """The `count` schedules that cost least, the best first."""
        looked_at = dict.fromkeys((*self.starts(problem), *self.more(problem)))
        found = [self.estimate(problem, each, rates) for each in looked_at]
        return sorted(found, key=lambda each: each.seconds)[:count]

    @property
    def of_family(self) -> GpuModel:
        """What a family hands to those that estimate and tune."""
        return GpuModel(self.problem, self.estimate, self.best, self.chosen)


@lru_cache(maxsize=4096)
def _chosen(model: WalkModel, problem: Any) -> Schedule:
    return model.chosen(problem, _rates_of(problem.target)).schedule


@lru_cache(maxsize=8)
def _rates_of(target: Target) -> GpuMachine:
    """What is known of a target's rates. Raises UnsupportedTargetError where nothing is."""
    return gpu_machine(target)
