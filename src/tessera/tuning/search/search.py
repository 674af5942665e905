"""The search for the best schedule: a strategy proposes, `evaluate` measures, the leaders meet in the finals.

Search knows neither kernels nor clocks: `evaluate` turns schedules into trials, `clock` tells the seconds, so that
every strategy is tested on recorded tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tessera.errors import ScheduleError, TuneFailedError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningSpace
from tessera.tuning.measure.measurement import FINAL, SCREEN, Effort
from tessera.tuning.measure.trial import Trial, drift
from tessera.tuning.model.ranking import Predict
from tessera.tuning.search.finals import TIE, finalists, hidden, in_order, winner
from tessera.tuning.search.strategy import Explained, StrategyFor, StrategyName, strategy_for

__all__ = ["TIE", "Evaluate", "SearchLimits", "SearchResult", "search"]

Evaluate: TypeAlias = Callable[[Sequence[Schedule], Effort], Sequence[Trial]]

_ROUNDS = 4
"""In so many batches the trials are made: a strategy learns between them. The first is twice as large."""
_LEAST_BATCH = 2
_SHORT_S = 1.0
"""A budget below this may not last for a first batch: the default, measured alone, tells what it lasts for."""


@dataclass(frozen=True)
class SearchLimits:
    """When to stop: trials, seconds, and how many local searches to begin anew. At most `batch` schedules are timed
    against each other at once.
    """

    max_trials: int = 48
    budget_s: float = 30.0
    climbs: int = 3
    batch: int = 8


@dataclass(frozen=True)
class SearchResult:
    """The winner, every trial in the order made, why the search ended, and what noise hid (empty: nothing)."""

    best: Trial
    trials: tuple[Trial, ...]
    reason: str
    doubt: str = ""

    @property
    def note(self) -> str:
        """Why the search ended, and what noise hid, for people."""
        return f"{self.reason}; {self.doubt}" if self.doubt else self.reason


def search(
    space: TuningSpace,
    predict: Predict,
    evaluate: Evaluate,
    limits: SearchLimits = SearchLimits(),
    clock: Callable[[], float] = time.monotonic,
    strategy: StrategyName | StrategyFor = "guided",
    stop: Callable[[], str] = lambda: "",
) -> SearchResult:
    """Searches `space` for the schedule that runs fastest. `stop` is asked between batches: where it gives a reason,
    the best so far wins at once, without finals.

    Raises E_TUNE_SPACE_EMPTY, E_TUNE_FAILED if no candidate runs, and E_SCHEDULE_ILLEGAL for a strategy that proposes
    what the space does not permit.
    """
    return _Search(space, predict, evaluate, limits, clock, strategy, stop).run()


@dataclass
class _Search:
    space: TuningSpace
    model: Predict
    evaluate: Evaluate
    limits: SearchLimits
    clock: Callable[[], float]
    named: StrategyName | StrategyFor
    stop: Callable[[], str]
    tried: dict[Schedule, Trial] = field(default_factory=dict)
    predicted: dict[Schedule, float] = field(default_factory=dict)
    reason: str = ""
    interrupted: bool = False

    def run(self) -> SearchResult:
        self.begin = self.clock()
        strategy = strategy_for(self.named, self.limits.climbs)(self.space, self.model)
        # However short the budget, the default is measured.
        pending = [] if self.space.violations(self.space.default) else [self.space.default]
        while pending or not self._spent():
            room = self._batch() - len(pending)
            batch = [*pending, *(self._fresh(strategy.propose(room)) if room > 0 else [])]
            if not batch:
                self.reason = _reason_of(strategy)
                break
            strategy.observe(self._try(batch))
            pending = []
        if not in_order(self._trials(), self.predict):
            raise TuneFailedError(f"all {len(self.tried)} candidates failed", hints=_count_failures(self.tried))
        leaders = self._leaders()
        best = winner(leaders, self.space.default, self.predict)
        return SearchResult(best, tuple(self._trials()), self.reason, hidden(leaders, best))

    def predict(self, schedule: Schedule) -> float:
        """The model's seconds, asked once."""
        seconds = self.predicted.get(schedule)
        if seconds is None:
            seconds = self.predicted[schedule] = self.model(schedule)
        return seconds

    # -- measuring ----------------------------------------------------------------------------------------------------

    def _batch(self) -> int:
        """How many schedules to time at once: a share of the trials, and what the budget lasts for."""
        share = max(_LEAST_BATCH, self.limits.max_trials // _ROUNDS)
        if not self.tried:
            return 1 if self.limits.budget_s < _SHORT_S else min(self.limits.batch, 2 * share, self.limits.max_trials)
        room = min(self.limits.batch, share, self.limits.max_trials - len(self.tried))
        elapsed = self.clock() - self.begin
        affordable = (self.limits.budget_s - elapsed) * len(self.tried) / elapsed if elapsed > 0 else room
        return max(1, int(min(room, affordable)))

    def _fresh(self, proposed: Sequence[Schedule]) -> list[Schedule]:
        """What of a proposal was not measured yet. Raises ScheduleError for what is not legal."""
        fresh = [schedule for schedule in dict.fromkeys(proposed) if schedule not in self.tried]
        fresh = [schedule for schedule in fresh if self.tried or schedule != self.space.default]
        for schedule in fresh:
            known = set(schedule) == set(self.space.default)
            broken = self.space.violations(schedule) if known else ()
            if not known or broken:
                raise ScheduleError(
                    f"the strategy proposed {schedule}, which is not legal here",
                    hints=[f"rule {name}" for name in broken] or [f"the knobs are {', '.join(self.space.default)}"],
                )
        return fresh

    def _try(self, batch: Sequence[Schedule]) -> list[Trial]:
        """Times schedules against the best so far, so that a machine that has become slower or faster meanwhile
        misleads nobody.
        """
        anchor = next(iter(in_order(self._trials(), self.predict)), None)
        trials = self.evaluate([*([anchor.schedule] if anchor else []), *batch], SCREEN)
        factor = 1.0
        if anchor is not None:
            factor = 1.0 / drift(anchor.timing, trials[0].timing)
            trials = trials[1:]
        timings = [trial.timing.scaled(factor) if trial.timing is not None else None for trial in trials]
        fresh = [self._labelled(replace(trial, timing=timing)) for trial, timing in zip(trials, timings, strict=True)]
        self.tried |= {trial.schedule: trial for trial in fresh}
        return fresh

    def _leaders(self) -> list[Trial]:
        """The leaders, the fastest first, timed again: longer, and against each other and the default."""
        leaders = finalists(self._trials(), self.space.default, self.predict)
        if len(leaders) == 1 or self.interrupted:
            return leaders if len(leaders) == 1 else in_order(self._trials(), self.predict)
        again = self.evaluate([trial.schedule for trial in leaders], FINAL)
        self.tried |= {trial.schedule: self._labelled(trial) for trial in again}
        survivors = in_order([self.tried[trial.schedule] for trial in leaders], self.predict)
        survivors = survivors or in_order(self._trials(), self.predict)[:1]
        if not survivors:
            raise TuneFailedError("every candidate failed when it ran again", hints=_count_failures(self.tried))
        return survivors

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _trials(self) -> list[Trial]:
        return list(self.tried.values())

    def _labelled(self, trial: Trial) -> Trial:
        return replace(trial, predicted_s=self.predict(trial.schedule))

    def _spent(self) -> bool:
        if len(self.tried) >= self.limits.max_trials:
            self.reason = f"all {self.limits.max_trials} trials were made"
        elif self.clock() - self.begin >= self.limits.budget_s and self.tried:
            self.reason = f"the budget of {self.limits.budget_s:g} s was spent"
        elif self.tried and (asked := self.stop()):
            self.reason, self.interrupted = asked, True
        return bool(self.reason)


def _reason_of(strategy: object) -> str:
    reason = strategy.reason if isinstance(strategy, Explained) else ""
    return reason or "the strategy proposes nothing more"


def _count_failures(tried: dict[Schedule, Trial]) -> list[str]:
    """One hint per outcome: how many, and what the first of them said."""
    hints: list[str] = []
    for outcome in sorted({trial.outcome for trial in tried.values()}):
        failed = [trial for trial in tried.values() if trial.outcome == outcome]
        said = f", the first of them: {failed[0].detail}" if failed[0].detail else ""
        hints.append(f"{len(failed)} ended as {outcome}{said}")
    return hints
