"""What a run found, as plain values that go to the table and to JSON alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from bench.timing import MINIMUM_KEPT

Role = Literal["ours", "eager", "eager_unlocked", "raised", "library", "compiled", "compiled_unlocked", "control"]
"""`eager` is torch as installed, `raised` the same with malloc's thresholds raised, `control` eager once more;
`unlocked` is with MKL's AVX-512 path."""

Memory = Literal["fresh", "out"]
"""Whether each call returns a fresh tensor or writes into one made beforehand."""


@dataclass(frozen=True)
class Measurement:
    """One contender on one case: median and fastest seconds per call, or the reason why there are none."""

    contender: str
    role: Role
    memory: Memory
    seconds: float | None = None
    fastest: float | None = None
    kept: int = 0
    contended: int = 0
    error: float | None = None
    reason: str | None = None

    @property
    def quiet(self) -> bool:
        """Whether enough batches ran while nothing else wanted the CPU."""
        return self.kept >= MINIMUM_KEPT


@dataclass(frozen=True)
class Goal:
    """What a case is to reach: the best time of `roles` divided by ours, at least `ratio`. `memory` None means any."""

    name: str
    roles: tuple[Role, ...]
    ratio: float
    memory: Memory | None = None


@dataclass(frozen=True)
class Verdict:
    """A goal held against the measurements: `ratio` is None when one side was not measured."""

    goal: Goal
    peer: str | None
    ratio: float | None
    quiet: bool = True
    """Whether both sides were measured undisturbed."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None when it cannot be told."""
        return None if self.ratio is None else self.ratio >= self.goal.ratio


@dataclass(frozen=True)
class CaseResult:
    """All contenders on one case with one thread count. `bound_s` is the roofline's lower limit in seconds."""

    label: str
    threads: int
    flops: int
    bytes: int
    bound_s: float | None
    binds: str | None
    measurements: tuple[Measurement, ...]
    goals: tuple[Goal, ...] = ()

    def ours(self, memory: Memory | None) -> Measurement | None:
        """Tessera's fastest measurement of that kind of memory."""
        return self.best(("ours",), memory)

    def best(self, roles: Iterable[Role], memory: Memory | None) -> Measurement | None:
        """The fastest measurement among `roles` of that kind of memory, if any."""
        wanted = tuple(roles)
        kin = (m for m in self.measurements if m.role in wanted and memory in (None, m.memory))
        return min((m for m in kin if m.seconds is not None), key=lambda m: m.seconds or 0.0, default=None)

    def ratio(self, peer: Measurement) -> float | None:
        """`peer`'s time divided by ours of the same kind of memory; of any kind where ours has no such form."""
        ours = self.ours(peer.memory) or self.ours(None)
        if ours is None or ours.seconds is None or peer.seconds is None:
            return None
        return peer.seconds / ours.seconds

    def verdicts(self) -> list[Verdict]:
        """Every goal with what was reached."""
        result = []
        for goal in self.goals:
            peer, ours = self.best(goal.roles, goal.memory), self.ours(goal.memory)
            measured = peer is not None and ours is not None and peer.seconds is not None and ours.seconds is not None
            ratio = peer.seconds / ours.seconds if measured else None  # type: ignore[union-attr,operator]
            quiet = all(side.quiet for side in (peer, ours) if side is not None)
            result.append(Verdict(goal, peer.contender if peer else None, ratio, quiet))
        return result


@dataclass(frozen=True)
class Figure:
    """One number that is no case: an overhead, a compile time, a mean. `limit`, in `unit`, is the most allowed, `least`
    the least."""

    name: str
    contender: str
    threads: int
    unit: str
    value: float | None = None
    limit: float | None = None
    reason: str | None = None
    note: str = ""
    least: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the limits are kept; None when there is none or nothing was measured."""
        if self.value is None or (self.limit is None and self.least is None):
            return None
        return (self.limit is None or self.value <= self.limit) and (self.least is None or self.value >= self.least)


@dataclass
class SuiteResult:
    """What one suite found with one thread count."""

    suite: str
    threads: int
    cases: list[CaseResult] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    interrupted: bool = False
    """Whether the user ended it before all cases were measured."""
