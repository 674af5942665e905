"""The search for the best schedule: candidates ranked by the cost model, then hill climbing from the best measured
ones.

Search knows neither kernels nor clocks: `evaluate` turns schedules into trials, `clock` tells the seconds, so that
every strategy is tested on recorded tables.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tessera.errors import TuneFailedError
from tessera.scheduling.schedule import Schedule
from tessera.tuning.interfaces import SearchSpace
from tessera.tuning.measurement import FINAL, SCREEN, Effort
from tessera.tuning.ranking import Predict, ranked
from tessera.tuning.trial import Timing, Trial

Evaluate: TypeAlias = Callable[[Sequence[Schedule], Effort], Sequence[Trial]]

TIE = 0.01
"""Schedules this close to the best are as good as it: the model's favourite among them wins, so that two tunings
agree.
"""

_SMALL_GAIN = 0.01
_DOUBT = 0.75
_FINALISTS = 4
_FINAL_MARGIN = 0.05
_DEFAULT_MARGIN = 0.3


@dataclass(frozen=True)
class SearchLimits:
    """When to stop: trials, seconds, and how many hill climbs to begin. `batch` schedules are timed against each
    other at once.
    """

    max_trials: int = 48
    budget_s: float = 30.0
    climbs: int = 3
    batch: int = 8


@dataclass(frozen=True)
class SearchResult:
    """The winner, every trial in the order made, and why the search ended."""

    best: Trial
    trials: tuple[Trial, ...]
    reason: str


def search(
    space: SearchSpace,
    predict: Predict,
    evaluate: Evaluate,
    limits: SearchLimits = SearchLimits(),
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Searches `space` for the schedule that runs fastest. Raises E_TUNE_SPACE_EMPTY, and E_TUNE_FAILED if no
    candidate runs.
    """
    return _Search(space, predict, evaluate, limits, clock).run()


@dataclass
class _Search:
    space: SearchSpace
    predict: Predict
    evaluate: Evaluate
    limits: SearchLimits
    clock: Callable[[], float]
    tried: dict[Schedule, Trial] = field(default_factory=dict)
    reason: str = ""

    def run(self) -> SearchResult:
        self.begin = self.clock()
        self.ranking = ranked(self.space, self.predict)
        self.predicted = {schedule: seconds for seconds, schedule in self.ranking}
        self._enumerate()
        for start in itertools.islice(self._starts(), self.limits.climbs):
            self._climb(start)
        if not any(trial.outcome == "ok" for trial in self.tried.values()):
            raise TuneFailedError(f"all {len(self.tried)} candidates failed", hints=_count_failures(self.tried))
        best = self._final()
        return SearchResult(best, tuple(self.tried.values()), self.reason or "no neighbour is better")

    # -- stages -------------------------------------------------------------------------------------------------------

    def _enumerate(self) -> None:
        """The default and the model's favourites, until half the trials are spent or no more gain is promised."""
        default = [self.space.default] if self.space.default in self.predicted else []
        queue = list(dict.fromkeys([*default, *_distinct(self.ranking)]))
        share = max(self.limits.max_trials // 2, min(self.limits.batch, self.limits.max_trials))
        # However short the budget, the default is measured.
        while queue and len(self.tried) < share and not (self.tried and self._spent()):
            if self._hopeless(queue[0]):
                return
            size = min(self._batch(), share - len(self.tried))
            self._try(queue[:size])
            queue = queue[size:]

    def _hopeless(self, schedule: Schedule) -> bool:
        """Whether a schedule would not gain even if the model erred by a third more than it ever did here."""
        best = self._best()
        if best is None:
            return False
        optimism = min(trial.seconds / self._predict(trial.schedule) for trial in self._succeeded())
        return self._predict(schedule) * optimism * _DOUBT > best.seconds * (1 - _SMALL_GAIN)

    def _starts(self) -> Iterator[Schedule]:
        """Where climbs begin: the best so far, then the best that no climb has been at, then random ones."""
        begun: set[Schedule] = set()
        generator = random.Random(0)
        while True:
            fresh = [trial for trial in self._succeeded() if trial.schedule not in begun]
            start = min(fresh, key=self._order).schedule if fresh else generator.choice(self.ranking)[1]
            begun |= {start, *self.space.neighbours(start)}
            yield start

    def _climb(self, here: Schedule) -> None:
        """Moves to the best neighbour as long as that gains more than noise."""
        while not self._spent():
            if here not in self.tried:
                self._try([here])
            fresh = [schedule for schedule in self.space.neighbours(here) if schedule not in self.tried]
            fresh.sort(key=lambda schedule: (self._predict(schedule), str(schedule)))
            while fresh and not self._spent():
                size = self._batch()
                self._try(fresh[:size])
                fresh = fresh[size:]
            around = [self.tried[schedule] for schedule in self.space.neighbours(here) if schedule in self.tried]
            up = min((trial for trial in around if trial.outcome == "ok"), key=self._order, default=None)
            if up is None or up.seconds >= self.tried[here].seconds * (1 - _SMALL_GAIN):
                return
            here = up.schedule

    def _final(self) -> Trial:
        """The winner: the leaders are timed again, longer and against each other and the default.

        The default stays unless the best beats it by more than the noise: what merely looked faster on a disturbed
        machine is not worth remembering. Other ties go to the model's favourite.
        """
        finalists = self._finalists()
        leaders = finalists
        if len(finalists) > 1:
            again = self.evaluate([trial.schedule for trial in finalists], FINAL)
            self.tried |= {trial.schedule: self._labelled(trial) for trial in again}
            survivors = [self.tried[trial.schedule] for trial in finalists]
            survivors = [trial for trial in survivors if trial.outcome == "ok"]
            leaders = sorted(survivors, key=self._order) or sorted(self._succeeded(), key=self._order)[:1]
        if not leaders:
            raise TuneFailedError("every candidate failed when it ran again", hints=_count_failures(self.tried))
        best = leaders[0].timing
        default = next((trial for trial in leaders if trial.schedule == self.space.default), None)
        if default is not None and not _beats(best, default.timing):
            return default
        ties = [
            trial for trial in leaders if best is not None and trial.timing is not None and _tied(best, trial.timing)
        ]
        return min(ties, key=lambda trial: (self._predict(trial.schedule), str(trial.schedule)))

    def _finalists(self) -> list[Trial]:
        """The fastest few, and the default unless it is far behind."""
        ordered = sorted(self._succeeded(), key=self._order)
        leaders = [trial for trial in ordered if trial.seconds <= ordered[0].seconds * (1 + _FINAL_MARGIN)]
        leaders = leaders[:_FINALISTS]
        default = self.tried.get(self.space.default)
        if default is not None and default.seconds <= ordered[0].seconds * (1 + _DEFAULT_MARGIN):
            leaders += [default] if default not in leaders else []
        return leaders

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _batch(self) -> int:
        """How many schedules to time at once: fewer where the budget would not last for a full batch."""
        if not self.tried:
            return self.limits.batch
        elapsed = self.clock() - self.begin
        affordable = (self.limits.budget_s - elapsed) * len(self.tried) / elapsed if elapsed > 0 else self.limits.batch
        return max(1, min(self.limits.batch, int(affordable)))

    def _try(self, schedules: Sequence[Schedule]) -> None:
        """Times schedules against the best so far, so that a machine that has become slower or faster meanwhile
        misleads nobody.
        """
        room = self.limits.max_trials - len(self.tried)
        fresh = list(schedules)[:room]
        if not fresh:
            return
        anchor = self._best()
        trials = self.evaluate([*([anchor.schedule] if anchor else []), *fresh], SCREEN)
        factor = 1.0
        if anchor is not None:
            factor = anchor.seconds / trials[0].seconds if trials[0].outcome == "ok" else 1.0
            trials = trials[1:]
        for trial in trials:
            timing = trial.timing.scaled(factor) if trial.timing is not None else None
            self.tried[trial.schedule] = self._labelled(replace(trial, timing=timing))

    def _labelled(self, trial: Trial) -> Trial:
        return replace(trial, predicted_s=self._predict(trial.schedule))

    def _predict(self, schedule: Schedule) -> float:
        seconds = self.predicted.get(schedule)
        if seconds is None:
            seconds = self.predicted[schedule] = self.predict(schedule)
        return seconds

    def _succeeded(self) -> list[Trial]:
        return [trial for trial in self.tried.values() if trial.outcome == "ok"]

    def _order(self, trial: Trial) -> tuple[float, float, str]:
        return trial.seconds, self._predict(trial.schedule), str(trial.schedule)

    def _best(self) -> Trial | None:
        return min(self._succeeded(), key=self._order, default=None)

    def _spent(self) -> bool:
        if len(self.tried) >= self.limits.max_trials:
            self.reason = f"all {self.limits.max_trials} trials were made"
        elif self.clock() - self.begin >= self.limits.budget_s:
            self.reason = f"the budget of {self.limits.budget_s:g} s was spent"
        return bool(self.reason)


def _distinct(ranking: Sequence[tuple[float, Schedule]]) -> Iterator[Schedule]:
    """One schedule of each predicted time: those that a knob without effect tells apart would crowd out the others."""
    for _, group in itertools.groupby(ranking, key=lambda item: f"{item[0]:.6g}"):
        yield next(group)[1]


def _tied(best: Timing, other: Timing) -> bool:
    """Whether `other` is as good as `best` as far as one can tell: within 1 %, or within 2 % and both intervals."""
    slack = TIE
    if other.low_s <= best.high_s:
        slack = min(max(best.noise + other.noise, TIE), 2 * TIE)
    return other.median_s <= best.median_s * (1 + slack)


def _beats(best: Timing | None, other: Timing | None) -> bool:
    """Whether `best` is faster beyond doubt: by more than 1 %, and their intervals do not meet."""
    if best is None or other is None:
        return other is None
    return best.high_s < other.low_s and best.median_s * (1 + TIE) < other.median_s


def _count_failures(tried: dict[Schedule, Trial]) -> list[str]:
    """One hint per outcome: how many, and what the first of them said."""
    hints: list[str] = []
    for outcome in sorted({trial.outcome for trial in tried.values()}):
        failed = [trial for trial in tried.values() if trial.outcome == outcome]
        said = f", the first of them: {failed[0].detail}" if failed[0].detail else ""
        hints.append(f"{len(failed)} ended as {outcome}{said}")
    return hints
