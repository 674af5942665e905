"""Schedules under which a call is decomposed although nobody asked for it: chosen before what was tuned."""

from __future__ import annotations

from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.subjects import Subject
from tessera.scheduling.families.registry import decompositions
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target


def proposed(call: Call, subject: Subject, target: Target) -> Schedule | None:
    """The schedule that a decomposition proposes for a call; None where none does, and for steps of others."""
    if call.item.is_step:
        return None
    for each in decompositions(call.item.family, "schedule"):
        schedule = None if each.proposes is None else each.proposes(subject.spec, call.shaped.extents, target)
        if schedule is not None:
            return schedule
    return None
