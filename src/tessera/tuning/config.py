"""What `autotune` gives back: a schedule and where it comes from (`Config`), the state of the cache, and what an
import did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tessera.scheduling.schedule import Schedule
from tessera.tuning.identity import Identity
from tessera.tuning.trial import Trial

_FIRST = ("tile", "pipeline_depth", "fusion")
"""The knobs that kernels of every device have are said first; what is particular to this one follows."""

Source: TypeAlias = Literal["measured", "model", "cache", "nearest", "default"]


@dataclass(frozen=True)
class Config:
    """A schedule for one kernel of one shape; prints as `Best config: tile=(128,128,64), pipeline_depth=3,
    fusion=True` and the other knobs.

    `source` is "measured" or "model" for one found by this call, "cache" for one that the database had, "nearest" for
    that of another shape, "default" for an untuned one. Times are seconds per call; with "nearest" they are those of
    the other shape. `stale` names what has changed since it was found (versions, clocks). `note` says more in words.
    """

    schedule: Schedule
    identity: Identity
    source: Source
    predicted_s: float | None = None
    measured_s: float | None = None
    trials: tuple[Trial, ...] = ()
    stale: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        first = {knob: self.schedule[knob] for knob in _FIRST if knob in self.schedule}
        return f"Best config: {Schedule(first | dict(self.schedule))}"


@dataclass(frozen=True)
class Imported:
    """What `load_cache` did: entries applied, entries that what is here already beats, and those refused, by reason."""

    applied: int
    declined: int
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.applied} applied, {self.declined} no better than what was here"]
        lines += [f"{len(names)} not applied, {reason}: {', '.join(names)}" for reason, names in self.refused.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Status:
    """The state of autotuning in this process; `entries` counts winners by layer, `problems` are cache files at
    fault.
    """

    enabled: bool
    folder: Path
    writable: bool
    entries: Mapping[str, int]
    hits: int
    misses: int
    tuned: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        entries = ", ".join(f"{count} {layer}" for layer, count in self.entries.items())
        lines = [
            f"first-call tuning: {'on' if self.enabled else 'off'}",
            f"cache: {self.folder} ({'writable' if self.writable else 'not writable'})",
            f"entries: {entries}",
            f"this process: {self.hits} found, {self.misses} not found, {self.tuned} tuned",
        ]
        return "\n".join([*lines, *self.problems])
