"""What `autotune` gives back: a schedule and where it comes from (`Config`), the state of the cache, and what an
import did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ScheduleSource
from tessera.system.notebooks import ShownAsText
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store.identity import Identity

_FIRST = ("tile", "pipeline_depth", "fusion")
"""The knobs that kernels of every device have are said first; what is particular to this one follows."""

_SHOWN = 5
"""Entries of an import that are named for each reason why they do not apply."""

_CAVEATS: Final = {
    "default": " (never tuned: the cost model's choice)",
    "nearest": " (never tuned: the choice of the cost model and of what was measured for shapes nearby)",
}
"""What is said of schedules that nothing was measured for, by their source."""

_LAYERS: Final[Mapping[str, ScheduleSource]] = {
    "memory": "tuned",
    "user": "tuned",
    "site": "site",
    "shipped": "shipped",
}
"""Others are caches that the program loaded by their names."""
_CHOSEN: Final[Mapping[str, ScheduleSource]] = {"model": "model", "nearest": "nearest", "default": "default"}

Source: TypeAlias = Literal["measured", "model", "cache", "nearest", "default", "agreed"]
WarmingState: TypeAlias = Literal["waiting", "tuning", "elsewhere", "done", "failed"]


@dataclass(frozen=True)
class Config(ShownAsText):
    """A schedule for one kernel of one shape; prints as `Best config: tile=(128,128,64), pipeline_depth=3,
    fusion=True` and the other knobs; of one that nobody has tuned it says so.

    `source` is "measured" or "model" for one found by this call, "cache" for one that the database had, "nearest" for
    one chosen from what was measured for shapes nearby, "default" for an untuned one, "agreed" for what the ranks of a
    job have chosen. Times are seconds per call; with "nearest" `predicted_s` is what is expected here. `stale` names
    what has changed since it was found (versions, clocks). `note` says more in words, `layer` names the cache that had
    it.
    """

    schedule: Schedule
    identity: Identity
    source: Source
    predicted_s: float | None = None
    measured_s: float | None = None
    trials: tuple[Trial, ...] = ()
    stale: tuple[str, ...] = ()
    note: str = ""
    layer: str = ""

    @property
    def chosen_by(self) -> ScheduleSource:
        """Who chose the schedule, as traces and explanations say it."""
        return chosen_by(self.source, self.layer, self.measured_s is not None)

    @property
    def is_fresh(self) -> bool:
        """Whether the schedule was measured for this very kernel, under today's versions and clocks."""
        return self.source in ("cache", "measured") and self.measured_s is not None and not self.stale

    def __str__(self) -> str:
        first = {knob: self.schedule[knob] for knob in _FIRST if knob in self.schedule}
        return f"Best config: {Schedule(first | dict(self.schedule))}{_CAVEATS.get(self.source, '')}"


def chosen_by(source: Source, layer: str, is_measured: bool) -> ScheduleSource:
    """Who chose the schedule of a config with this source, from that layer of the cache."""
    if source == "cache":
        return _LAYERS.get(layer, "cache") if is_measured else "model"
    return _CHOSEN.get(source, "tuned")


@dataclass(frozen=True)
class Imported(ShownAsText):
    """What `load_cache` did: entries applied, entries that what is here already beats, and those refused, by reason."""

    applied: int
    declined: int
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.applied} applied, {self.declined} no better than what was here"]
        for reason, names in self.refused.items():
            more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"{len(names)} not applied, {reason}: {', '.join(names[:_SHOWN])}{more}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Warming:
    """How far warm-up tuning is with one kernel: `calls` of it so far, `trials` of at most `limit`, `best_s` seconds
    per call of the fastest (None before one ran). `state` is "elsewhere" where another rank of the job tunes it. `note`
    says why the search ended, or why it failed.
    """

    kernel: str
    state: WarmingState
    calls: int
    trials: int
    limit: int
    best_s: float | None
    note: str = ""

    def __str__(self) -> str:
        best = f", best {self.best_s * 1e6:.4g} us" if self.best_s is not None else ""
        said = f": {self.note}" if self.note else ""
        return f"{self.state}, {self.trials} of {self.limit} trials{best}, {self.calls} calls: {self.kernel}{said}"


@dataclass(frozen=True)
class Status(ShownAsText):
    """The state of autotuning in this process; `entries` counts winners by layer, `problems` are cache files at
    fault. `share` is that of the program's time which warm-up tuning may take, None where first calls are tuned at
    once; `warming` has the progress of each kernel that was met, and `warming_s` the seconds that it has cost so far.
    """

    enabled: bool
    folder: Path
    writable: bool
    entries: Mapping[str, int]
    hits: int
    misses: int
    tuned: int
    problems: tuple[str, ...]
    share: float | None = None
    warming: tuple[Warming, ...] = ()
    warming_s: float = 0.0

    def __str__(self) -> str:
        entries = ", ".join(f"{count} {layer}" for layer, count in self.entries.items())
        lines = [
            f"tuning: {self._how()}",
            f"cache: {self.folder} ({'writable' if self.writable else 'not writable'})",
            f"entries: {entries}",
            f"this process: {self.hits} found, {self.misses} not found, {self.tuned} tuned",
        ]
        return "\n".join([*lines, *map(str, self.warming), *self.problems])

    def _how(self) -> str:
        if not self.enabled:
            return "off"
        if self.share is None:
            return "on, at first calls"
        return f"on, in at most {self.share:.0%} of the time between calls ({self.warming_s:.3g} s so far)"
