"""What can be said of a problem before anything is measured: what rules remove, what the model expects, what is left.

    combinations -- rules --> legal -- spills --> -- model --> worth measuring

Rules say what would be wrong or cannot be compiled. Of the rest the model leaves the schedules that it expects to be
among the fastest: enough of them that one within noise of the best is left although it errs (`KEPT`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tessera.scheduling.language.columns import Mask
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimate
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.model.ranking import Ranked, Ranking, favourite, ranked

KEPT: Final = 0.35
"""The part of the legal schedules, those that the model likes best, that are worth measuring."""
LEAST_KEPT: Final = 16
"""As many are kept in any case: small spaces are measured nearly in full."""
SPILLED: Final = 0.1
"""The part of the estimated time from which on registers that are written to memory and back rule a schedule out."""


@dataclass(frozen=True)
class Removed:
    """How many schedules each step removed: `looked` combinations, of which each rule (by its name; several may reject
    the same one) dropped so many, `legal` are left; of the `ranked` ones among them `spilling` fusions and then
    `unlikely` ones were pruned. `sampled` where the space is so large that combinations were drawn at random.
    """

    looked: int
    rules: Mapping[str, int]
    legal: int
    sampled: bool
    ranked: int
    spilling: int
    unlikely: int

    @property
    def kept(self) -> int:
        """Schedules that are worth measuring."""
        return self.ranked - self.spilling - self.unlikely


@dataclass(frozen=True)
class PredictedSchedule:
    """A schedule with its analytical estimate and the seconds that the problem's cost model predicts."""

    schedule: Schedule
    predicted_s: float
    estimate: Estimate


@dataclass(frozen=True)
class Outlook:
    """What the model expects of a problem: what it chooses, the first of its ranking that is predicted otherwise (None
    where there is none), the default, and what was removed.
    """

    favourite: PredictedSchedule
    runner_up: PredictedSchedule | None
    default: PredictedSchedule
    removed: Removed


def outlook(problem: TuningProblem) -> Outlook:
    """What can be said of a problem without measuring: some ten milliseconds. Raises E_TUNE_SPACE_EMPTY."""
    ranking = ranked(problem.space, problem.predict)
    worth = worth_measuring(problem, ranking)
    first = favourite(problem.space, problem.predict, ranking)
    second = next((each for each in ranking if abs(each[0] - first[0]) > 1e-6 * first[0]), None)
    default = problem.space.default
    found = problem.space.rejections()
    removed = Removed(
        found.examined,
        found.by_rule,
        found.legal,
        problem.space.size > found.examined,
        len(ranking),
        worth.spilling,
        len(ranking) - worth.spilling - len(worth.schedules),
    )
    return Outlook(
        _candidate(problem, first),
        None if second is None else _candidate(problem, second),
        _candidate(problem, (problem.predict(default), default)),
        removed,
    )


@dataclass(frozen=True)
class Worth:
    """What is left of a ranking, in its order, and how many schedules went because they spill registers."""

    schedules: Sequence[Ranked]
    spilling: int


def kept(legal: int) -> int:
    """How many of so many legal schedules are worth measuring, by the model's ranking."""
    return min(legal, max(LEAST_KEPT, int(np.ceil(KEPT * legal))))


def worth_measuring(problem: TuningProblem, ranking: Sequence[Ranked]) -> Worth:
    """The schedules of a ranking that are worth measuring: those that do not spill, as far as there are any, and of
    these the `KEPT` part that is predicted to be fastest, but `LEAST_KEPT` at least; and the default, which is measured
    whatever the model says.
    """
    spills = _spilling(problem, ranking)
    left = np.flatnonzero(~spills) if not spills.all() else np.arange(len(ranking))
    places = left[: kept(len(ranking))]
    default = np.flatnonzero(_equal(ranking, problem.space.default))
    places = np.append(places, default[~np.isin(default, places)])
    chosen: Sequence[Ranked]
    if isinstance(ranking, Ranking):
        chosen = Ranking(ranking.seconds[places], ranking.schedules.take(places))
    else:
        chosen = [ranking[place] for place in places.tolist()]
    return Worth(chosen, len(ranking) - len(left))


def _equal(ranking: Sequence[Ranked], schedule: Schedule) -> Mask:
    """Which of a ranking is this schedule."""
    if not isinstance(ranking, Ranking):
        return np.array([each == schedule for _, each in ranking], np.bool_)
    equal = np.ones(len(ranking), np.bool_)
    for knob, value in schedule.items():
        equal &= np.asarray(ranking.schedules.equals(knob, value), np.bool_)
    return equal


def _spilling(problem: TuningProblem, ranking: Sequence[Ranked]) -> Mask:
    schedules = ranking.schedules if isinstance(ranking, Ranking) else [schedule for _, schedule in ranking]
    estimates = problem.estimates(schedules)
    spills = estimates.terms.get("spills")
    if spills is None:
        return np.zeros(len(ranking), np.bool_)
    return np.asarray(spills > SPILLED * estimates.seconds)


def _candidate(problem: TuningProblem, found: Ranked) -> PredictedSchedule:
    seconds, schedule = found
    (estimate,) = problem.estimates([schedule])
    return PredictedSchedule(schedule, seconds, estimate)
