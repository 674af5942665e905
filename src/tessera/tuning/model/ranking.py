"""The cost model's order of a space: in full where the space is small, else of what a search by the model finds."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, overload

import numpy as np

from tessera.errors import TuneSpaceEmptyError
from tessera.scheduling.language.batches import Batches
from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Seconds
from tessera.tuning.interfaces import TuningSpace, doubt_of, predicted

Predict: TypeAlias = Callable[[Schedule], float]
Ranked: TypeAlias = tuple[float, Schedule]

COMBINED = 20_000
"""Spaces of more combinations are not walked one schedule at a time: legal ones may be rare where a walk begins."""
AT_ONCE = 150_000
"""The same for spaces whose rules judge many schedules at once: some ten milliseconds."""
ENUMERATED = 3000
"""With up to this many legal schedules a space that is judged one schedule at a time is ranked in full."""

_DRAWN = 600
_CLIMBS = 6
_ROUND, _ROUNDS = 2048, 6
_MOST_STEPS = 40


class Ranking(Sequence[Ranked]):
    """(predicted seconds, schedule), the fastest first. Schedules are made when they are asked for."""

    def __init__(self, seconds: Seconds, schedules: Columns) -> None:
        self.seconds, self.schedules = seconds, schedules

    def __len__(self) -> int:
        return len(self.seconds)

    @overload
    def __getitem__(self, index: int) -> Ranked: ...

    @overload
    def __getitem__(self, index: slice) -> Ranking: ...

    def __getitem__(self, index: int | slice) -> Ranked | Ranking:
        if isinstance(index, slice):
            return Ranking(self.seconds[index], self.schedules[index])
        return float(self.seconds[index]), self.schedules[index]


def ranked(space: TuningSpace, predict: Predict, seed: int = 0) -> Sequence[Ranked]:
    """(predicted seconds, schedule) of legal schedules, fastest first, equal ones in the order of the knobs' choices
    (of spaces other than `Space` by their text): always the same list.

    Of a space of more than `AT_ONCE` (`COMBINED`) combinations: the default, the starts, random draws, and all that the
    model meets when it climbs from the best of these to where no neighbour is predicted to be faster. Raises
    E_TUNE_SPACE_EMPTY, with the rules that dropped every schedule.
    """
    return _ranked_at_once(space, predict, seed) if isinstance(space, Space) else _ranked_singly(space, predict, seed)


def favourite(space: TuningSpace, predict: Predict, ranking: Sequence[Ranked] | None = None) -> Ranked:
    """The choice without a trial: the first of the ranking, or the default where that is not promised to be slower by
    more than the model's doubt (`interfaces.DOUBT`); defaults were found by measuring. Raises E_TUNE_SPACE_EMPTY.
    """
    best = (ranked(space, predict) if ranking is None else ranking)[0]
    if doubt_of(predict) == 0.0 or space.violations(space.default):
        return best
    default_s = predict(space.default)
    return best if default_s > best[0] * (1 + doubt_of(predict)) else (default_s, space.default)


# -- many schedules at once -------------------------------------------------------------------------------------------


def _ranked_at_once(space: Space[Any], predict: Predict, seed: int) -> Ranking:
    batches = Batches(space)
    if space.size <= (AT_ONCE if all(rule.batched for rule in space.rules) else COMBINED):
        found = _starts(batches).joined(batches.space.legal(batches.all()))
        return _in_order(batches, found, predicted(predict, found), space)
    generator = np.random.default_rng(seed)
    found = _sampled(batches, generator)
    seconds = predicted(predict, found)
    here = found.take(np.argsort(seconds, kind="stable")[:_CLIMBS])
    for _ in range(_MOST_STEPS):
        keys = batches.keys(found)
        around = batches.around(here)
        places, first = np.unique(batches.keys(around), return_index=True)
        fresh = batches.space.legal(around.take(first[~np.isin(places, keys)]))
        if not len(fresh):
            break
        gained = predicted(predict, fresh)
        best = seconds.min()
        found, seconds = found.joined(fresh), np.concatenate([seconds, gained])
        here = fresh.take(np.argsort(gained, kind="stable")[:_CLIMBS])
        if gained.min() >= best:
            break
    return _in_order(batches, found, seconds, space)


def _sampled(batches: Batches, generator: np.random.Generator) -> Columns:
    """Where climbs may begin: the default and the starts, variations of them, and random ones; legal and once each."""
    found = _starts(batches)
    for _ in range(_ROUNDS):
        drawn = batches.drawn(_ROUND, generator)
        if len(found):
            drawn = drawn.joined(batches.varied(found, _ROUND // 2, generator))
        found = _once(batches, found.joined(batches.space.legal(drawn)))
        if len(found) >= _DRAWN:
            break
    return found


def _starts(batches: Batches) -> Columns:
    space = batches.space
    legal = [each for each in (space.default, *space.starts) if not space.violations(each)]
    return batches.of([each for each in legal if batches.holds(each)])


def _once(batches: Batches, schedules: Columns) -> Columns:
    _, first = np.unique(batches.keys(schedules), return_index=True)
    return schedules.take(first)


def _in_order(batches: Batches, schedules: Columns, seconds: Seconds, space: Space[Any]) -> Ranking:
    keys, first = np.unique(batches.keys(schedules), return_index=True)
    if not len(keys):
        raise TuneSpaceEmptyError("no schedule of this space is legal", hints=space.why_empty())
    order = first[np.argsort(seconds[first], kind="stable")]
    return Ranking(seconds[order], schedules.take(order))


# -- one at a time ----------------------------------------------------------------------------------------------------


def _ranked_singly(space: TuningSpace, predict: Predict, seed: int) -> list[Ranked]:
    default = [space.default] if not space.violations(space.default) else []
    schedules: list[Schedule] = []
    if space.size <= COMBINED:
        schedules = list(itertools.islice(space.candidates(), ENUMERATED + 1))
        if len(schedules) <= ENUMERATED:
            return _sorted(_known(predict, [*default, *schedules]).items(), space)
    known = _known(predict, [*default, *(_drawn(space, seed) or schedules)])
    for _, start in _sorted(known.items(), space)[:_CLIMBS]:
        _climb(space, predict, start, known)
    return _sorted(known.items(), space)


def _known(predict: Predict, schedules: Sequence[Schedule]) -> dict[Schedule, float]:
    distinct = list(dict.fromkeys(schedules))
    return dict(zip(distinct, predicted(predict, distinct).tolist(), strict=True))


def _drawn(space: TuningSpace, seed: int) -> list[Schedule]:
    generator = random.Random(seed)
    drawn: list[Schedule] = []
    # Where legal schedules are so rare that drawing misses them, climbing from the others finds more.
    with contextlib.suppress(TuneSpaceEmptyError):
        for _ in range(_DRAWN):
            drawn.append(space.draw(generator))
    return drawn


def _climb(space: TuningSpace, predict: Predict, here: Schedule, known: dict[Schedule, float]) -> None:
    """Follows the prediction downhill from `here`, adding to `known` what it meets."""
    while True:
        around = space.neighbours(here)
        fresh = [schedule for schedule in around if schedule not in known]
        known |= _known(predict, fresh)
        best = min(around, key=lambda schedule: (known[schedule], str(schedule)), default=here)
        if known[best] >= known[here]:
            return
        here = best


def _sorted(items: Iterable[tuple[Schedule, float]], space: TuningSpace) -> list[Ranked]:
    ranking = sorted(((seconds, schedule) for schedule, seconds in items), key=lambda item: (item[0], str(item[1])))
    if not ranking:
        raise TuneSpaceEmptyError("no schedule of this space is legal", hints=space.why_empty())
    return ranking
