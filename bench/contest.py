"""Runs all contenders of a case, or of a job, against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.cases import Case
from bench.ceilings import CaseBound
from bench.environments import NotMeasuredError
from bench.pool import Pool, RemoteCall, prepare
from bench.results import CaseResult, Goal, Measurement, Memory, Role
from bench.timing import Batch, Budget, Samples, interleave


@dataclass(frozen=True)
class Contender:
    """Someone who computes cases: the name shown, the environment it runs in, its builder, and what it stands for."""

    name: str
    environment: str
    builder: str
    role: Role
    memory: Memory = "fresh"


@dataclass
class _Guarded:
    """A runner whose worker may die: from then on its batches are not counted and the reason is kept."""

    remote: RemoteCall
    reason: str | None = None

    def batch(self) -> Batch:
        if self.reason is None:
            try:
                return self.remote.batch()
            except NotMeasuredError as reason:
                self.reason = str(reason)
        return Batch(float("nan"), contended=True)


def bound(pool: Pool, operation: str, flops: int, size: int, dtype: str) -> CaseBound | None:
    """The roofline bound of that work for the pool's thread count; None when it cannot be measured."""
    try:
        found = pool.process("tessera").ask(do="bound", operation=operation, flops=flops, size=size, dtype=dtype)
    except NotMeasuredError:
        return None
    return CaseBound(**found) if found else None


class Entrant(Protocol):
    """Someone who takes part in a contest."""

    @property
    def name(self) -> str:
        """The name shown."""

    @property
    def role(self) -> Role:
        """What they stand for."""


def measure(
    entrants: Sequence[Entrant], prepare: Callable[[Any], RemoteCall], budget: Budget
) -> tuple[Measurement, ...]:
    """Prepares, checks and times the entrants in turn; whoever cannot run is listed with the reason.

    `prepare` makes an entrant's call in its process, or raises NotMeasuredError.
    """
    runners: dict[str, _Guarded] = {}
    reasons: dict[str, str] = {}
    for entrant in entrants:
        try:
            runners[entrant.name] = _Guarded(prepare(entrant))
        except NotMeasuredError as reason:
            reasons[entrant.name] = str(reason)
    samples = interleave(runners, budget)
    found = []
    for entrant in entrants:
        guarded = runners.get(entrant.name)
        why = reasons.get(entrant.name) if guarded is None else guarded.reason
        found.append(_measurement(entrant, guarded, samples.get(entrant.name), why))
    return tuple(found)


def contest(
    pool: Pool,
    case: Case,
    contenders: Sequence[Contender],
    *,
    goals: tuple[Goal, ...],
    budget: Budget,
) -> CaseResult:
    """Prepares, checks and times `contenders` on `case`; whoever cannot run is listed with the reason."""

    def ready(contender: Contender) -> RemoteCall:
        return prepare(pool, contender.environment, contender.name, contender.builder, case)

    measurements = measure(contenders, ready, budget)
    pool.drop()
    least = bound(pool, case.operation, case.flops, case.bytes, case.dtype)
    return CaseResult(
        case.label,
        pool.threads,
        case.flops,
        case.bytes,
        least.seconds if least else None,
        least.binds if least else None,
        measurements,
        goals,
    )


def _measurement(
    entrant: Entrant, guarded: _Guarded | None, samples: Samples | None, reason: str | None
) -> Measurement:
    memory: Memory = getattr(entrant, "memory", "fresh")
    if guarded is None or samples is None or reason is not None:
        return Measurement(entrant.name, entrant.role, memory, reason=reason)
    return Measurement(
        entrant.name,
        entrant.role,
        memory,
        seconds=samples.median,
        fastest=samples.fastest,
        kept=len(samples.kept),
        contended=len(samples.contended),
        error=guarded.remote.error,
    )
