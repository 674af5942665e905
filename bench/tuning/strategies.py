"""What is judged on tables: ways to choose a schedule, by the model, by a few trials, or from other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.tuning.replay import TableMeasurer
from bench.tuning.table import Table
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.measurement import Effort
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.base import Modelled
from tessera.tuning.model.outlook import worth_measuring
from tessera.tuning.model.ranking import Ranked, favourite, ranked
from tessera.tuning.model.registry import under
from tessera.tuning.model.transfer import MOST, WITHIN, Known, Neighbour, schedule_for
from tessera.tuning.search.search import SearchLimits, SearchResult, search


@dataclass(frozen=True)
class Case:
    """A table, and its problem under a cost model: the space is the table's, and predictions have not seen it."""

    table: Table
    problem: TuningProblem

    @cached_property
    def ranking(self) -> Sequence[Ranked]:
        """(predicted seconds, schedule) of the recorded space, fastest first."""
        return ranked(self.problem.space, self.problem.predict)

    @cached_property
    def worth(self) -> list[Schedule]:
        """What is left of the ranking when the tuner has dropped what it would not measure."""
        return [schedule for _, schedule in worth_measuring(self.problem, self.ranking).schedules]

    @property
    def favourite(self) -> Schedule:
        """The model's choice at no trials."""
        return favourite(self.problem.space, self.problem.predict, self.ranking)[1]

    @cached_property
    def _found(self) -> dict[tuple[int, int], SearchResult]:
        return {}

    def tuning(self, trials: int, half: int = 0) -> SearchResult:
        """A cold tuning with so many trials, which sees one half of the samples, 0 or 1, and none of the other."""
        key = (trials, half)
        if key not in self._found:
            self._found[key] = self._search(*key)
        return self._found[key]

    def tuned(self, trials: int, half: int = 0) -> Schedule:
        """The winner of `tuning`."""
        return self.tuning(trials, half).best.schedule

    def reached(self, trials: int, half: int) -> float:
        """The share of the best that a tuning reaches, by the samples that it has not seen: those that it chose by were
        fast by chance, too.
        """
        return self.table.share(self.tuned(trials, half), 1 - half)

    def _search(self, trials: int, half: int) -> SearchResult:
        measurer = TableMeasurer(self.table, half, half)

        def evaluate(schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
            return measurer.measure([(schedule, None) for schedule in schedules], effort)

        limits = SearchLimits(max_trials=trials, budget_s=math.inf)
        return search(self.problem.space, self.problem.predict, evaluate, limits, clock=lambda: 0.0)


def nearby(case: Case, others: Sequence[Case]) -> list[Case]:
    """The other tables of the same kernel whose shapes are near enough to learn from, the nearest first."""
    here = case.problem.identity
    kin = [other for other in others if set(here.differences(other.problem.identity)) == {"shape"}]
    near = [other for other in kin if here.distance(other.problem.identity) <= WITHIN]
    near.sort(key=lambda other: (here.distance(other.problem.identity), other.table.about.name))
    return near[:MOST]


def neighbours(case: Case, others: Sequence[Case], trials: int) -> list[Neighbour]:
    """What a shape that nobody tuned learns from: tunings of `trials` trials of the tables `nearby`."""
    return [_neighbour(_unknowing(other, case), trials) for other in nearby(case, others)]


def transferred(case: Case, others: Sequence[Case], trials: int) -> Schedule:
    """The schedule of a shape that nobody tuned, at no measurement: by what `trials` trials found for other shapes of
    the same kernel (`tuning.transfer`), or where none is near, the model's choice.
    """
    found = schedule_for(case.problem, neighbours(case, others, trials))
    return case.favourite if found is None else found.schedule


def _unknowing(other: Case, case: Case) -> Case:
    """Another table under the model of `case`: its own one, where models are fitted, has seen the shape of `case`, and
    would have it measure, and predict, what rests on that.
    """
    here, there = case.problem.predict, other.problem.predict
    if not (isinstance(here, Modelled) and isinstance(there, Modelled)) or here.model is there.model:
        return other
    return Case(other.table, under(other.problem, here.model))


def _neighbour(case: Case, trials: int) -> Neighbour:
    """A shape with the trials of its tuning."""
    made = case.tuning(trials).trials
    known = [Known(trial.schedule, trial.seconds, trial.predicted_s) for trial in made if trial.outcome == "ok"]
    return Neighbour.of(case.problem.identity.shape, known)
