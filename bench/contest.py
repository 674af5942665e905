"""Runs all contenders of a case against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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


def bound(pool: Pool, case: Case) -> CaseBound | None:
    """The roofline bound of `case` for the pool's thread count; None when it cannot be measured."""
    try:
        found = pool.process("tessera").ask(do="bound", case=asdict(case))
    except NotMeasuredError:
        return None
    return CaseBound(**found) if found else None


def contest(
    pool: Pool,
    case: Case,
    contenders: Sequence[Contender],
    *,
    goals: tuple[Goal, ...],
    budget: Budget,
) -> CaseResult:
    """Prepares, checks and times `contenders` on `case`; whoever cannot run is listed with the reason."""
    runners: dict[str, _Guarded] = {}
    reasons: dict[str, str] = {}
    for contender in contenders:
        try:
            remote = prepare(pool, contender.environment, contender.name, contender.builder, case)
        except NotMeasuredError as reason:
            reasons[contender.name] = str(reason)
            continue
        runners[contender.name] = _Guarded(remote)
    samples = interleave(runners, budget)
    measurements = []
    for contender in contenders:
        guarded = runners.get(contender.name)
        why = reasons.get(contender.name) if guarded is None else guarded.reason
        measurements.append(_measurement(contender, guarded, samples.get(contender.name), why))
    pool.drop()
    least = bound(pool, case)
    return CaseResult(
        case.label,
        pool.threads,
        case.flops,
        case.bytes,
        least.seconds if least else None,
        least.binds if least else None,
        tuple(measurements),
        goals,
    )


def _measurement(
    contender: Contender, guarded: _Guarded | None, samples: Samples | None, reason: str | None
) -> Measurement:
    if guarded is None or samples is None or reason is not None:
        return Measurement(contender.name, contender.role, contender.memory, reason=reason)
    return Measurement(
        contender.name,
        contender.role,
        contender.memory,
        seconds=samples.median,
        fastest=samples.fastest,
        kept=len(samples.kept),
        contended=len(samples.contended),
        error=guarded.remote.error,
    )
