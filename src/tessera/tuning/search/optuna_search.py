"""Optuna as a strategy: its samplers choose the values of knobs, Tessera's rules and cost model stand around them.

autotune(op.matmul, (512, 512, 512), method="on_device", strategy="optuna")
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from tessera.errors import ArgumentError
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.system.distribution import installing
from tessera.tuning.interfaces import TuningSpace
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.ranking import Predict, ranked

FAVOURITES: Final = 4
"""The model's favourites that a study begins with."""

_TRIES = 50
"""Draws of the sampler for each schedule asked for: most combinations of a large space break a rule."""


class OptunaSearch:
    """A `Strategy` around an Optuna study; `sampler` is a `optuna.samplers.BaseSampler`, TPE unless given.

    The study chooses each knob among the values that it has in the ranked part of the space. Raises ArgumentError
    where Optuna is not installed.
    """

    def __init__(self, space: TuningSpace, predict: Predict, sampler: Any = None, seed: int = 0) -> None:
        optuna = _optuna()
        self._space = space
        ranking = [schedule for _, schedule in ranked(space, predict)]
        self._values: dict[str, dict[str, KnobValue]] = {
            knob: {str(value): value for value in dict.fromkeys(each[knob] for each in ranking)}
            for knob in space.default
        }
        self._failed = optuna.trial.TrialState.FAIL
        sampler = sampler or optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        quiet = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(sampler=sampler)
        finally:
            optuna.logging.set_verbosity(quiet)
        for schedule in islice((each for each in ranking if each != space.default), FAVOURITES):
            self._study.enqueue_trial({knob: str(schedule[knob]) for knob in self._values})
        self._pending: dict[Schedule, Any] = {}
        self._known: dict[Schedule, float | None] = {space.default: None}

    def propose(self, count: int) -> Sequence[Schedule]:
        """What the sampler draws, as far as it is legal and new."""
        fresh: list[Schedule] = []
        for _ in range(count * _TRIES):
            asked = self._study.ask()
            schedule = Schedule(
                {knob: values[asked.suggest_categorical(knob, list(values))] for knob, values in self._values.items()}
            )
            if schedule in self._known or schedule in self._pending or self._space.violations(schedule):
                self._tell(asked, self._known.get(schedule))
                continue
            self._pending[schedule] = asked
            fresh.append(schedule)
            if len(fresh) == count:
                break
        return fresh

    def observe(self, trials: Sequence[Trial]) -> None:
        """Tells the study the seconds, or that the schedule failed."""
        for trial in trials:
            seconds = trial.timing.median_s if trial.timing is not None else None
            self._known[trial.schedule] = seconds
            asked = self._pending.pop(trial.schedule, None)
            if asked is not None:
                self._tell(asked, seconds)

    def _tell(self, asked: Any, seconds: float | None) -> None:
        if seconds is None:
            self._study.tell(asked, state=self._failed)
        else:
            self._study.tell(asked, seconds)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ArgumentError("Optuna is not installed", hints=[installing("optuna")]) from None
    return optuna
