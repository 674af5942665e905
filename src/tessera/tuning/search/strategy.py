"""Strategies of search: what proposes the schedules that are measured next.

class Coin:                                               a strategy of one's own: draws, and learns nothing
    def __init__(self, space, predict): self.space = space
    def propose(self, count): return [self.space.draw(random.Random()) for _ in range(count)]
    def observe(self, trials): pass

search(space, predict, evaluate, strategy=Coin)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from tessera.errors import ArgumentError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningSpace
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.ranking import Predict
from tessera.tuning.search.baselines import RandomSearch, RankedEnumeration
from tessera.tuning.search.guided import GuidedSearch

StrategyName: TypeAlias = Literal["guided", "ranking", "random", "optuna"]
NAMES: Final[tuple[StrategyName, ...]] = ("guided", "ranking", "random", "optuna")


class Strategy(Protocol):
    """Proposes schedules and is told what became of them. The space's default is measured without being proposed, and
    observed with the first batch.
    """

    def propose(self, count: int) -> Sequence[Schedule]:
        """At most `count` legal schedules to measure next, against each other; those that were measured before are
        skipped. None: nothing more is worth a trial, and the search ends.
        """
        ...

    def observe(self, trials: Sequence[Trial]) -> None:
        """What became of the schedules proposed last, failures among them."""
        ...


@runtime_checkable
class Explained(Protocol):
    """A strategy that says why it proposes nothing more."""

    @property
    def reason(self) -> str:
        """A few words for people; empty while it goes on."""
        ...


StrategyFor: TypeAlias = Callable[[TuningSpace, Predict], Strategy]
"""Makes the strategy of one search: a class of strategies is one."""


def strategy_for(strategy: StrategyName | StrategyFor, restarts: int = 3) -> StrategyFor:
    """What a name stands for; a callable stands for itself. `restarts` is how often "guided" begins anew before it
    gives up. Raises ArgumentError for any other name, and for "optuna" where that library is not installed.
    """
    if callable(strategy):
        return strategy
    if strategy == "guided":
        return lambda space, predict: GuidedSearch(space, predict, restarts)
    if strategy == "ranking":
        return RankedEnumeration
    if strategy == "random":
        return RandomSearch
    if strategy == "optuna":
        from tessera.tuning.search.optuna_search import OptunaSearch

        return OptunaSearch
    raise ArgumentError(
        f"strategy {strategy!r} is none", hints=[f"one of {', '.join(NAMES)}, or a class with propose and observe"]
    )
