"""The cost model's order of a space: in full where the space is small, else of what a search by the model finds."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tessera.errors import TuneSpaceEmptyError
from tessera.scheduling.schedule import Schedule
from tessera.tuning.interfaces import SearchSpace

Predict: TypeAlias = Callable[[Schedule], float]

COMBINED = 20_000
"""Spaces of more combinations are not walked: legal ones may be rare where a walk begins (a second or so of rules)."""
ENUMERATED = 3000
"""With up to this many legal schedules a space is ranked in full; a prediction takes some ten microseconds."""

_DRAWN = 600
_CLIMBS = 6


def ranked(space: SearchSpace, predict: Predict, seed: int = 0) -> list[tuple[float, Schedule]]:
    """(predicted seconds, schedule) of legal schedules, fastest first, equal ones by their text: always the same list.

    Of a space larger than `COMBINED` or `ENUMERATED`: the default, random draws, and all that the model meets when it
    climbs from the best of these to where no neighbour is predicted to be faster. Raises E_TUNE_SPACE_EMPTY, with the
    rules that dropped every schedule.
    """
    default = [space.default] if not space.violations(space.default) else []
    schedules: list[Schedule] = []
    if space.size <= COMBINED:
        schedules = list(itertools.islice(space.candidates(), ENUMERATED + 1))
        if len(schedules) <= ENUMERATED:
            return _sorted({schedule: predict(schedule) for schedule in (*default, *schedules)}.items(), space)
    known = {schedule: predict(schedule) for schedule in (*default, *(_drawn(space, seed) or schedules))}
    for _, start in _sorted(known.items(), space)[:_CLIMBS]:
        _climb(space, predict, start, known)
    return _sorted(known.items(), space)


def _drawn(space: SearchSpace, seed: int) -> list[Schedule]:
    generator = random.Random(seed)
    drawn: list[Schedule] = []
    # Where legal schedules are so rare that drawing misses them, climbing from the others finds more.
    with contextlib.suppress(TuneSpaceEmptyError):
        for _ in range(_DRAWN):
            drawn.append(space.draw(generator))
    return drawn


def _climb(space: SearchSpace, predict: Predict, here: Schedule, known: dict[Schedule, float]) -> None:
    """Follows the prediction downhill from `here`, adding to `known` what it meets."""
    while True:
        around = space.neighbours(here)
        for schedule in around:
            if schedule not in known:
                known[schedule] = predict(schedule)
        best = min(around, key=lambda schedule: (known[schedule], str(schedule)), default=here)
        if known[best] >= known[here]:
            return
        here = best


def _sorted(items: Iterable[tuple[Schedule, float]], space: SearchSpace) -> list[tuple[float, Schedule]]:
    ranking = sorted(((seconds, schedule) for schedule, seconds in items), key=lambda item: (item[0], str(item[1])))
    if not ranking:
        raise TuneSpaceEmptyError("no schedule of this space is legal", hints=space.why_empty())
    return ranking
