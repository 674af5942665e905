"""Strategies that do not learn: the cost model's order, and the draw. What others are compared with."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from tessera.errors import TuneSpaceEmptyError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningSpace
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.ranking import Predict, ranked

_TRIES = 20
"""Draws for each schedule asked for, before a space counts as exhausted."""


class RankedEnumeration:
    """The cost model's favourites, one of each predicted time, the fastest first."""

    def __init__(self, space: TuningSpace, predict: Predict) -> None:
        order = _distinct(ranked(space, predict))
        self._queue = (schedule for schedule in order if schedule != space.default)

    def propose(self, count: int) -> Sequence[Schedule]:
        """The next `count` of the ranking."""
        return list(islice(self._queue, count))

    def observe(self, trials: Sequence[Trial]) -> None:
        """Changes nothing: the order is the model's."""


class RandomSearch:
    """Legal schedules drawn evenly, none twice; `seed` decides the draw."""

    def __init__(self, space: TuningSpace, predict: Predict, seed: int = 0) -> None:
        self._space = space
        self._generator = random.Random(seed)
        self._drawn = {space.default}

    def propose(self, count: int) -> Sequence[Schedule]:
        """`count` schedules not drawn before, fewer where the space hardly has any left."""
        fresh: list[Schedule] = []
        for _ in range(count * _TRIES):
            try:
                schedule = self._space.draw(self._generator)
            except TuneSpaceEmptyError:
                break
            if schedule not in self._drawn:
                self._drawn.add(schedule)
                fresh.append(schedule)
            if len(fresh) == count:
                break
        return fresh

    def observe(self, trials: Sequence[Trial]) -> None:
        """Changes nothing: a draw does not depend on what was measured."""


def _distinct(ranking: Sequence[tuple[float, Schedule]]) -> Iterator[Schedule]:
    """One schedule of each predicted time: those that a knob without effect tells apart would crowd out the others."""
    for _, group in groupby(ranking, key=lambda item: f"{item[0]:.6g}"):
        yield next(group)[1]
