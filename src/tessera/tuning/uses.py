"""Tuning what a run used: its kernels, hottest first, within one budget of seconds for all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tessera.errors import TuneFailedError, TuneSpaceEmptyError
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.search import ranks

LEAST_S = 1.0
"""Seconds that a kernel gets at least, however little of the run was its: a search of fewer finds nothing."""


@dataclass(frozen=True)
class Use:
    """A kernel as a run used it: what reports call it, its problem, and the seconds and calls that it took there."""

    label: str
    problem: TuningProblem
    seconds: float
    calls: int


@dataclass(frozen=True)
class Usage:
    """The kernels of a run, hottest first, and the seconds of those that cannot be tuned, by reason."""

    uses: tuple[Use, ...]
    untuned: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time of all kernels of the run."""
        return math.fsum([use.seconds for use in self.uses]) + math.fsum(self.untuned.values())


@dataclass(frozen=True)
class Tuned:
    """What became of one use: the best schedule, or why there is none."""

    use: Use
    config: Config | None
    reason: str = ""


def in_common(usage: Usage) -> Usage:
    """What the ranks of a `ranks.team()` have all used, with the times that the first of them saw, so that they tune
    the same kernels in the same order; a process that is alone keeps its own.
    """
    seen = ranks.gathered({str(use.problem.identity): use.seconds for use in usage.uses})
    common = set(seen[0]).intersection(*seen)
    uses = [(str(use.problem.identity), use) for use in usage.uses]
    return replace(usage, uses=tuple(replace(use, seconds=seen[0][name]) for name, use in uses if name in common))


def _clock() -> float:
    """Seconds; those of the first rank for all that tune together, so that one budget ends for all at once."""
    return ranks.decided(time.monotonic())


Solve: TypeAlias = Callable[[TuningProblem, float], Config]
"""(problem, seconds to spend at most) -> its best schedule. Raises E_TUNE_FAILED and E_TUNE_SPACE_EMPTY."""


def tune_uses(
    uses: Sequence[Use], solve: Solve, budget_s: float, clock: Callable[[], float] = _clock
) -> Iterator[Tuned]:
    """Tunes kernels one after the other, hottest first, for about `budget_s` seconds together.

    A kernel may spend the share of what is left that its time has among the kernels still to come, and at least
    `LEAST_S`: what one does not need goes to the next. Kernels that the budget does not reach are given back with that
    as their reason.
    """
    begin = clock()
    ordered = sorted(uses, key=lambda use: (-use.seconds, str(use.problem.identity)))
    for number, use in enumerate(ordered):
        left = budget_s - (clock() - begin)
        if left <= 0:
            yield Tuned(use, None, f"the budget of {budget_s:g} s was spent before")
            continue
        to_come = math.fsum([other.seconds for other in ordered[number:]])
        share = use.seconds / to_come if to_come > 0 else 1 / (len(ordered) - number)
        try:
            yield Tuned(use, solve(use.problem, min(max(LEAST_S, left * share), left)))
        except (TuneFailedError, TuneSpaceEmptyError) as error:
            yield Tuned(use, None, error.message)
