"""The default strategy: the cost model's ranking, corrected by what every trial says of the model's error.

1. The first batch is the default, the model's favourites, and schedules unlike these that the model likes almost as
   well: all three come of the expected gain, given that what has been chosen already tells about what is like it.
2. After every batch the error is learnt anew (`gaussian_process.py`), and the next batch is what then promises most.
3. Of a large space only a part is known. It grows around the best measured schedules and where steps downhill by the
   corrected prediction lead.
4. Where all that the next batch is expected to gain lies below the noise of what was measured, the model is doubted a
   few times: what it may err about more than it was seen to is tried, and random draws. These are the restarts. The
   end is where they change nothing.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.errors import TuneSpaceEmptyError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningSpace, predicted
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.gaussian_process import (
    FLOOR,
    Array,
    Belief,
    Encoding,
    FeatureColumns,
    GaussianProcess,
    expected_gain,
    log_seconds,
)
from tessera.tuning.model.outlook import kept
from tessera.tuning.model.ranking import Predict, ranked

FAILED: Final = math.log(2.0)
"""A schedule that fails counts as one that takes twice as long as expected: what is like it is tried late."""
FAVOURED: Final = 1000
OTHERS: Final = 500
"""How much of a ranking is looked at to begin with; neighbours of what turns out well join it."""
TRUSTED: Final = 12
"""Trials in which nothing is measured that the model alone prunes (`outlook.kept`); then they tell how it errs."""
LEAST_GAIN: Final = 0.002
"""An expected gain below this ends a search however little noise there is."""

_LEAST_TRIALS: Final = 3
_CLIMBED: Final = 2
_STEPS: Final = 8
_DRAWN: Final = 200
_DOUBTED: Final = 4


class GuidedSearch:
    """A `Strategy`: ranked enumeration first, then a local search with at most `restarts` restarts, both by the
    corrected model. Raises TuneSpaceEmptyError for a space without legal schedules.
    """

    def __init__(self, space: TuningSpace, predict: Predict, restarts: int = 3, seed: int = 0) -> None:
        self._space = space
        self._predict = predict
        self._restarts = restarts
        self._generator = random.Random(seed)
        whole = ranked(space, predict)
        ranking = _part(whole)
        self._worth = float(log_seconds([whole[kept(len(whole)) - 1][0]])[0])
        self._schedules = [schedule for _, schedule in ranking]
        self._numbers = {schedule: number for number, schedule in enumerate(self._schedules)}
        self._expected = log_seconds([seconds for seconds, _ in ranking])
        self._encoding = Encoding(self._schedules)
        self._rows = self._encoding.rows(self._schedules)
        if not space.violations(space.default):
            self._add([space.default])
        self._trials: dict[int, Trial] = {}
        self._model = self._fitted()
        self.reason = ""

    # -- the protocol -------------------------------------------------------------------------------------------------

    def propose(self, count: int) -> Sequence[Schedule]:
        """The schedules that promise most together; none once that is less than the noise."""
        if self._trials:
            self._look_around()
        chosen, gain = self._most_promising(count, self._model)
        worthwhile = self._worthwhile()
        if chosen and gain > worthwhile:
            return self._named(chosen)
        if chosen and self._restarts and self._trials:
            self._restarts -= 1
            self._draw()
            return self._named(self._most_promising(min(count, _DOUBTED), self._model.doubted())[0])
        self.reason = (
            f"the expected gain of {gain:.1%} is below the noise of {worthwhile:.1%}" if chosen else "all were tried"
        )
        return []

    def _named(self, numbers: Sequence[int]) -> list[Schedule]:
        return [self._schedules[number] for number in numbers]

    def observe(self, trials: Sequence[Trial]) -> None:
        """Learns the model's error from all trials so far."""
        for trial in trials:
            self._trials[self._number(trial.schedule)] = trial
        self._model = self._fitted()

    # -- what is known ------------------------------------------------------------------------------------------------

    def _number(self, schedule: Schedule) -> int:
        self._add([schedule])
        return self._numbers[schedule]

    def _add(self, schedules: Iterable[Schedule]) -> list[int]:
        """The numbers of schedules, of which some may be new."""
        listed = list(schedules)
        fresh = [schedule for schedule in dict.fromkeys(listed) if schedule not in self._numbers]
        if fresh:
            self._numbers |= {schedule: len(self._schedules) + i for i, schedule in enumerate(fresh)}
            self._schedules += fresh
            self._expected = np.append(self._expected, log_seconds(predicted(self._predict, fresh)))
            self._rows = np.vstack([self._rows, self._encoding.rows(fresh)])
        return [self._numbers[schedule] for schedule in listed]

    def _features(self, numbers: Sequence[int] | slice) -> Array:
        """What the model's error may depend on: the knobs, and the octave of the predicted time."""
        return np.column_stack([self._rows[numbers], self._expected[numbers] / math.log(2)])

    def _fitted(self) -> GaussianProcess:
        numbers = list(self._trials)
        times = np.array([trial.seconds for trial in self._trials.values()])
        ran = np.isfinite(times)
        residuals = np.zeros(len(numbers))
        residuals[ran] = np.log(times[ran]) - self._expected[numbers][ran]
        residuals[~ran] = FAILED + (residuals[ran].mean() if ran.any() else 0.0)
        noise = [FLOOR if trial.timing is None else FLOOR + _deviation(trial) for trial in self._trials.values()]
        unordered = np.append(self._encoding.unordered, False)
        return GaussianProcess(FeatureColumns(unordered), self._features(numbers), residuals, np.array(noise))

    def _best_seconds(self) -> float:
        return min((trial.seconds for trial in self._trials.values()), default=math.inf)

    # -- what to try --------------------------------------------------------------------------------------------------

    def _most_promising(self, count: int, model: GaussianProcess) -> tuple[list[int], float]:
        """The numbers of `count` schedules, one after another that of the largest expected gain (a fraction of the
        time) where the ones before came out as expected; and the sum of these gains.
        """
        belief = model.belief(self._features(slice(None)))
        times = self._expected + belief.mean
        free = np.ones(len(times), dtype=bool)
        free[list(self._trials)] = False
        if len(self._trials) < TRUSTED:
            free &= self._expected <= self._worth
        best = self._begin(belief, times, free)
        chosen: list[int] = []
        total = 0.0
        while len(chosen) < count and free.any():
            candidates = np.flatnonzero(free)
            gains = expected_gain(best - times[candidates], np.sqrt(belief.variance[candidates]))
            first = int(np.argmax(gains))
            number = int(candidates[first])
            total += float(gains[first])
            chosen.append(number)
            belief.assume(number)
            best = min(best, times[number])
            free &= ~self._twins(number)
        return chosen, total

    def _begin(self, belief: Belief, times: Array, free: NDArray[np.bool_]) -> float:
        """The logarithm of the seconds to beat; before anything is measured, those expected of the default."""
        best = self._best_seconds()
        if math.isfinite(best):
            return math.log(best)
        number = self._numbers.get(self._space.default)
        if self._trials or number is None:
            return float(times[free].min()) if free.any() else 0.0
        free &= ~self._twins(number)
        belief.assume(number)
        return float(times[number])

    def _twins(self, number: int) -> NDArray[np.bool_]:
        """A schedule and what only a knob that the model sees no effect of tells apart from it: such would crowd out
        the others of a batch.
        """
        differing = (self._rows != self._rows[number]).sum(axis=1)
        twins: NDArray[np.bool_] = (differing <= 1) & (np.abs(self._expected - self._expected[number]) < 1e-6)
        return twins

    def _worthwhile(self) -> float:
        """The gain, a fraction, that could still be told from noise: the standard error of the best time."""
        ran = [trial for trial in self._trials.values() if trial.timing is not None]
        if len(ran) < _LEAST_TRIALS:
            return 0.0
        return max(_deviation(min(ran, key=lambda trial: trial.seconds)), LEAST_GAIN)

    # -- what there is besides ----------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Adds the neighbours of the best measured schedules, and what lies downhill by the corrected prediction."""
        ran = [number for number, trial in self._trials.items() if trial.outcome == "ok"]
        for number in sorted(ran, key=lambda number: self._trials[number].seconds)[:_CLIMBED]:
            self._add(self._space.neighbours(self._schedules[number]))
        times = self._expected + self._model.belief(self._features(slice(None))).mean
        for number in np.argsort(times, kind="stable")[:_CLIMBED]:
            self._climb(int(number))

    def _climb(self, here: int) -> None:
        for _ in range(_STEPS):
            around = [here, *self._add(self._space.neighbours(self._schedules[here]))]
            times = self._expected[around] + self._model.belief(self._features(around)).mean
            best = around[int(np.argmin(times))]
            if best == here:
                return
            here = best

    def _draw(self) -> None:
        """Adds random schedules."""
        with contextlib.suppress(TuneSpaceEmptyError):
            self._add([self._space.draw(self._generator) for _ in range(_DRAWN)])


def _part(ranking: Sequence[tuple[float, Schedule]]) -> list[tuple[float, Schedule]]:
    """The favourites of a ranking, and a few of all the others: what a batch is chosen from, in milliseconds."""
    others = ranking[FAVOURED:]
    return [*ranking[:FAVOURED], *others[:: max(-(-len(others) // OTHERS), 1)]]


def _deviation(trial: Trial) -> float:
    """The standard error of a measured time, a fraction: its interval holds 95 %."""
    return 0.0 if trial.timing is None else trial.timing.noise / 1.96
