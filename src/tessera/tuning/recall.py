"""What the database has for a problem, as a `Config`, if it can be used here."""

from __future__ import annotations

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.store.database import Found
from tessera.tuning.store.identity import Provenance


def recalled(problem: TuningProblem, found: Found, now: Provenance | None = None) -> Config | None:
    """The config of an entry; None if its schedule breaks a rule here (the space has changed since, or the shape
    differs). `now` is the provenance that an entry found now would have.
    """
    entry = found.entry
    if not is_legal(problem, entry.schedule):
        return None
    now = now or Provenance.current(problem.generator, entry.provenance.mode)
    exact = entry.identity == problem.identity
    where = f"{entry.origin} winner of {entry.identity} in the {found.layer} cache, {entry.provenance.date}"
    return Config(
        entry.schedule,
        problem.identity,
        "cache" if exact else "nearest",
        entry.predicted_s,
        entry.measured_s,
        stale=entry.provenance.stale_fields(now),
        note=where,
        layer=found.layer,
    )


def is_legal(problem: TuningProblem, schedule: Schedule) -> bool:
    """Whether a schedule has exactly the knobs of a problem's space and keeps its rules."""
    return not problem.space.objections(schedule)
