"""Who chose a schedule."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from tessera.scheduling.language.schedule import Schedule

ScheduleSource: TypeAlias = Literal[
    "default", "model", "pinned", "given", "tuned", "nearest", "cache", "site", "shipped"
]
"""Who chose a schedule: the proven start of its family, the cost model, the user's pins with the model around them, who
asked for the kernel, what was measured on this machine, or for shapes nearby; or a winner of a cache that the program
loaded, of the site's, or of those that come with the package.
"""


class ChosenSchedule(NamedTuple):
    """A schedule, and who chose it."""

    schedule: Schedule
    source: ScheduleSource
