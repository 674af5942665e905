"""A space that is a list: the schedules that a user wrote down (`@op.autotune(configs=...)`), and no others."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tessera.scheduling.language.knobs import Rejections
from tessera.scheduling.language.schedule import Schedule

NOT_LISTED = "listed"
"""The rule that a schedule outside of the list breaks."""


class ListedSpace:
    """The `SearchSpace` of some schedules, at least one, all of them legal. The first is the default."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._schedules = tuple(dict.fromkeys(schedules))

    @property
    def default(self) -> Schedule:
        """The first of the list."""
        return self._schedules[0]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._schedules)

    def candidates(self) -> Sequence[Schedule]:
        """All of them, in the order of the list."""
        return self._schedules

    def neighbours(self, schedule: Schedule) -> Sequence[Schedule]:
        """None: a list has no steps from one schedule to the next."""
        return ()

    def violations(self, schedule: Schedule) -> Sequence[str]:
        """The one rule, for a schedule that is not in the list."""
        return () if schedule in self._schedules else (NOT_LISTED,)

    def unlike(self, schedule: Schedule) -> Sequence[str]:
        """The knobs that only one of the two has."""
        return sorted(schedule.keys() ^ self.default.keys())

    def objections(self, schedule: Schedule) -> Sequence[str]:
        """The same: nothing else keeps a schedule from being used."""
        return self.violations(schedule)

    def draw(self, generator: random.Random) -> Schedule:
        """One of them."""
        return generator.choice(self._schedules)

    def rejections(self) -> Rejections:
        """Nothing in the list is illegal."""
        return Rejections(self.size, self.size, {})

    def why_empty(self) -> Sequence[str]:
        """Nothing: the list is not empty."""
        return ()
