"""Whether a schedule that a person wrote is one of a kernel's, and legal for the extents that it names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tessera.errors import ScheduleError
from tessera.scheduling.families.registry import kernels_on
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target

FUSION = "fusion"
"""The knob that every kernel has: False launches its operators one by one. Spaces of GPUs do not have it."""
SOME = 1 << 10
"""The extent of every axis of a kernel that names none: it decides no more than which choices knobs have."""


def schedule_space(spec: Any, extents: Mapping[str, int] | None, target: Target) -> Space[Any]:
    """The schedules of a specification, for its extents or for some."""
    sizes = defaultdict(lambda: SOME) if extents is None else extents
    kernels = kernels_on(spec, target)
    return kernels.space(kernels.pose(spec, target)(sizes, max(2, target.processors)))


def check_schedule(
    spec: Any, schedule: Schedule, extents: Mapping[str, int] | None, target: Target
) -> tuple[str, ScheduleError] | None:
    """What keeps a schedule from being lowered: the knob that is wrong ("" where several are together), and the error.
    None where nothing does. Rules are asked where there are extents.
    """
    space = schedule_space(spec, extents, target)
    kernels = kernels_on(spec, target)
    steps = kernels.step_knobs & schedule.keys()
    beside = {FUSION, *steps} - space.by_name.keys()
    judged = Schedule({knob: value for knob, value in schedule.items() if knob not in beside})
    for name in space.unlike(judged):
        if name in judged or not steps:  # one of several steps has fewer knobs than a kernel that is alone
            return name, _unlike(name, judged, space)
    if extents is None or steps:
        return None
    reasons = {rule.name: rule.reason for rule in space.rules}
    hints = [f"rule {name}: {reasons[name]}" for name in space.violations(judged)]
    promise = kernels.promises(spec, schedule, extents)
    hints += [promise] if promise is not None else []
    sizes = ", ".join(f"{axis} = {extent}" for axis, extent in extents.items())
    return ("", ScheduleError(f"{schedule} is not legal for {sizes}", hints=hints, where="")) if hints else None


def _unlike(name: str, schedule: Schedule, space: Space[Any]) -> ScheduleError:
    """Why a knob cannot be judged by rules."""
    if name not in space.by_name:
        return ScheduleError(f"no knob is called {name!r}", hints=[f"knobs are {', '.join(space.by_name)}"], where="")
    choices = ", ".join(map(str, space.by_name[name].choices))
    said = f"{name} = {schedule[name]}" if name in schedule else f"the knob {name!r} is missing"
    return ScheduleError(said, hints=[f"{name} is {choices}, or like these: {space.by_name[name].purpose}"], where="")
