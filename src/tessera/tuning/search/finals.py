"""Who wins: the leaders of a search, timed again, and a canonical order among those that noise does not tell apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.trial import Timing, Trial

TIE: Final = 0.01
"""Schedules this close to the best are as good as it: the model's favourite among them wins, so that two tunings
agree.
"""
DOUBTLESS: Final = 3.5
"""Standard errors by which the best has to lead before the default gives way: the fastest of many has been lucky. On 27
recorded tables tunings that share no sample agree on 91 to 93 % of winners where it is enough that intervals do not
meet, on 97 to 99 % so, at the cost of 0.1 % of speed (two errors: 85 to 89 %).
"""
HOPELESS: Final = 0.05
"""A noise from which on it is said that it hid differences."""

_FASTEST = 2
_FINALISTS = 5
_FINAL_MARGIN = 0.05
_DEFAULT_MARGIN = 0.3

Predicted = Callable[[Schedule], float]


def canonical(predicted: Predicted) -> Callable[[Trial], tuple[float, str]]:
    """The order in which equally good schedules are preferred: as the model has it, then by their text."""
    return lambda trial: (predicted(trial.schedule), str(trial.schedule))


def in_order(trials: Sequence[Trial], predicted: Predicted) -> list[Trial]:
    """The trials that ran, the fastest first; equal ones as the model, then their text, has it."""
    ran = [trial for trial in trials if trial.outcome == "ok"]
    return sorted(ran, key=lambda trial: (trial.seconds, predicted(trial.schedule), str(trial.schedule)))


def finalists(trials: Sequence[Trial], default: Schedule, predicted: Predicted) -> list[Trial]:
    """The fastest few; of what may be as good as the fastest the model's favourites, one of which then wins in every
    tuning alike, whichever of them noise favours this time; and the default unless it is far behind.
    """
    ordered = in_order(trials, predicted)
    best = ordered[0]
    near = [trial for trial in ordered if trial.seconds <= best.seconds * (1 + _FINAL_MARGIN)]
    alike = sorted((trial for trial in near if _may_tie(best.timing, trial.timing)), key=canonical(predicted))
    leaders = [*near[:_FASTEST], *(trial for trial in alike if trial not in near[:_FASTEST])][:_FINALISTS]
    start = next((trial for trial in ordered if trial.schedule == default), None)
    if start is not None and start not in leaders:
        far = start.seconds > best.seconds * (1 + _DEFAULT_MARGIN) and beats(best.timing, start.timing)
        leaders += [] if far else [start]
    return leaders


def winner(leaders: Sequence[Trial], default: Schedule, predicted: Predicted) -> Trial:
    """The winner of trials that ran, the fastest first.

    The default stays unless the best beats it by more than the noise: what merely looked faster on a disturbed machine
    is not worth remembering. Other ties go to the model's favourite.
    """
    best = leaders[0]
    start = next((trial for trial in leaders if trial.schedule == default), None)
    if start is not None and not beats(best.timing, start.timing):
        return start
    ties = [trial for trial in leaders if tied(best.timing, trial.timing)]
    return min(ties, key=canonical(predicted))


def tied(best: Timing | None, other: Timing | None) -> bool:
    """Whether `other` is as good as `best` as far as one can tell: within 1 %, or within 2 % and both intervals."""
    if best is None or other is None:
        return False
    slack = TIE
    if other.low_s <= best.high_s:
        slack = min(max(best.noise + other.noise, TIE), 2 * TIE)
    return other.median_s <= best.median_s * (1 + slack)


def _may_tie(best: Timing | None, other: Timing | None) -> bool:
    """Whether measuring again may find two trials tied."""
    return best is not None and other is not None and other.low_s <= best.high_s * (1 + TIE)


def beats(best: Timing | None, other: Timing | None) -> bool:
    """Whether `best` is faster beyond doubt: by more than 1 %, and by more than noise makes of equals (`DOUBTLESS`)."""
    if best is None or other is None:
        return other is None
    error = math.hypot(best.noise, other.noise) / 1.96  # intervals hold 95 %
    return other.median_s > best.median_s * (1 + max(TIE, DOUBTLESS * error))


def hidden(leaders: Sequence[Trial], chosen: Trial) -> str:
    """What noise hid, for people: that the best of the leaders is not told from the chosen one although it looked
    faster by more than a tie. Empty where it hid nothing.
    """
    best = leaders[0]
    if best.timing is None or chosen.timing is None or best.schedule == chosen.schedule:
        return ""
    noise = max(best.timing.noise, chosen.timing.noise)
    if noise < HOPELESS or beats(best.timing, chosen.timing):
        return ""
    told = sum(beats(chosen.timing, trial.timing) for trial in leaders)
    others = "nothing could be told apart" if not told else f"{len(leaders) - told} leaders could not be told apart"
    return f"with a noise of {noise:.0%} {others}; {best.schedule} looked faster, but not beyond doubt"
