"""Trials: what became of one candidate schedule, with its time where it has one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tessera.scheduling.schedule import Schedule

Outcome: TypeAlias = Literal["ok", "crashed", "timeout", "wrong", "compile_error", "out_of_memory"]


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, its 95 % interval, and how many samples count of how many were taken.

    `contended` says that so few samples were free of other load that loaded ones had to be counted.
    """

    median_s: float
    low_s: float
    high_s: float
    kept: int
    taken: int
    contended: bool = False

    @classmethod
    def of(cls, samples: Sequence[float], taken: int | None = None, contended: bool = False) -> Timing:
        """The timing of `samples` (seconds per call, at least one).

        The interval is distribution-free: order statistics around the median (Conover, Practical Nonparametric
        Statistics, 3.2).
        """
        ordered = sorted(samples)
        reach = 0.98 * math.sqrt(len(ordered))
        low = max(math.floor(len(ordered) / 2 - reach), 0)
        high = min(math.ceil(len(ordered) / 2 + reach), len(ordered) - 1)
        count = len(ordered)
        return cls(statistics.median(ordered), ordered[low], ordered[high], count, taken or count, contended)

    @property
    def noise(self) -> float:
        """Half the interval's width as a fraction of the median."""
        return (self.high_s - self.low_s) / (2 * self.median_s) if self.median_s > 0 else 0.0

    def scaled(self, factor: float) -> Timing:
        """The same timing with all times multiplied by `factor`."""
        times = (self.median_s * factor, self.low_s * factor, self.high_s * factor)
        return Timing(*times, self.kept, self.taken, self.contended)


@dataclass(frozen=True)
class Trial:
    """One candidate: its schedule, what became of it, why, and its timing exactly when the outcome is "ok"."""

    schedule: Schedule
    outcome: Outcome
    timing: Timing | None = None
    detail: str = ""
    predicted_s: float | None = None

    def __post_init__(self) -> None:
        if (self.outcome == "ok") != (self.timing is not None):
            raise ValueError(f"a trial has a timing exactly when it is ok; this one is {self.outcome}")

    @property
    def seconds(self) -> float:
        """The median time of a call in seconds; infinite for a candidate that failed."""
        return self.timing.median_s if self.timing is not None else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as a line of the trial log."""
        record: dict[str, Any] = {"schedule": self.schedule.to_json(), "outcome": self.outcome}
        if self.timing is not None:
            timing = self.timing
            record |= {"median_s": timing.median_s, "low_s": timing.low_s, "high_s": timing.high_s}
            record |= {"kept": timing.kept, "taken": timing.taken, "contended": timing.contended}
        if self.detail:
            record["detail"] = self.detail
        if self.predicted_s is not None:
            record["predicted_s"] = self.predicted_s
        return record
