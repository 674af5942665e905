"""Trials that an interrupted tuning left on disk: taken over by the next one, so that nothing is measured twice."""

from __future__ import annotations

from typing import Any

from tessera.scheduling.language.schedule import Schedule
from tessera.system.files import host_name
from tessera.tuning.measure.trial import Trial, trial_of
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.identity import Identity, Provenance

_PASSING = ("timeout", "out_of_memory")
"""Outcomes that may be the fault of what else the machine did: such candidates get another chance."""


def earlier_trials(database: TuningDatabase, identity: Identity, provenance: Provenance) -> dict[Schedule, Trial]:
    """What is known of schedules from a tuning of `identity` on this host, under the same provenance, that did not end.

    Nothing where one has ended (its winner is in the database: whoever tunes again wants new measurements), and where
    no candidate ran: that must have had another reason.
    """
    found = database.lookup(identity)
    if found is not None and found.entry.origin == "measured" and _same(found.entry.provenance, provenance):
        return {}
    trials = {}
    for record in database.trials(identity):
        trial = _trial(record, provenance)
        if trial is not None:
            trials[trial.schedule] = trial
    trials = {schedule: trial for schedule, trial in trials.items() if trial.outcome not in _PASSING}
    return trials if any(trial.outcome == "ok" for trial in trials.values()) else {}


def _trial(record: dict[str, Any], provenance: Provenance) -> Trial | None:
    """The trial of a line of the log; None where it was made elsewhere or otherwise, or cannot be read."""
    try:
        if record["host"] != host_name() or not _same(Provenance.from_json(record["provenance"]), provenance):
            return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return trial_of(record)


def _same(then: Provenance, now: Provenance) -> bool:
    return then.mode == now.mode and not then.stale_fields(now)
