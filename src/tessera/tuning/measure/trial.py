"""Trials: what became of one candidate schedule, with its time where it has one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.conditions import Conditions
from tessera.tuning.measure.metrics import Metrics
from tessera.tuning.store.entry import schedule_of, seconds_of
from tessera.tuning.store.untrusted import whole

Outcome: TypeAlias = Literal["ok", "crashed", "timeout", "wrong", "compile_error", "out_of_memory"]
Stage: TypeAlias = Literal["screen", "final"]
"""Whether a trial was one of many, or one of the finalists that were timed again, longer and against each other."""


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


def drift(then: Timing | None, now: Timing | None) -> float:
    """By what factor the machine has become slower between two timings of one candidate; 1.0 where that cannot be told,
    because one of them is missing or was disturbed, or their intervals meet: what is noise here would become noise of
    all that is compared by it.
    """
    if then is None or now is None or then.contended or now.contended:
        return 1.0
    if then.low_s <= now.high_s and now.low_s <= then.high_s:
        return 1.0
    return now.median_s / then.median_s


@dataclass(frozen=True)
class Trial:
    """One candidate: its schedule, what became of it, why, and its timing exactly when the outcome is "ok".

    `conditions` are those it was timed under, `metrics` what its time says of the device; None where it was not timed.
    """

    schedule: Schedule
    outcome: Outcome
    timing: Timing | None = None
    detail: str = ""
    predicted_s: float | None = None
    conditions: Conditions | None = None
    metrics: Metrics | None = None
    stage: Stage = "screen"

    def __post_init__(self) -> None:
        if (self.outcome == "ok") != (self.timing is not None):
            raise ValueError(f"a trial has a timing exactly when it is ok; this one is {self.outcome}")

    @property
    def seconds(self) -> float:
        """The median time of a call in seconds; infinite for a candidate that failed."""
        return self.timing.median_s if self.timing is not None else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as a line of the trial log."""
        record: dict[str, Any] = {
            "schedule": self.schedule.to_json(),
            "outcome": self.outcome,
            "stage": self.stage,
        }
        if self.timing is not None:
            timing = self.timing
            record |= {"median_s": timing.median_s, "low_s": timing.low_s, "high_s": timing.high_s}
            record |= {"kept": timing.kept, "taken": timing.taken, "contended": timing.contended}
        if self.detail:
            record["detail"] = self.detail
        if self.predicted_s is not None and math.isfinite(self.predicted_s):
            record["predicted_s"] = self.predicted_s
        if self.conditions is not None:
            record |= self.conditions.to_json()
        if self.metrics is not None:
            record["metrics"] = self.metrics.to_json()
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Trial:
        """The trial of a line of the log, without its metrics; KeyError, TypeError or ValueError for anything else."""
        outcome = record["outcome"]
        if outcome not in get_args(Outcome):
            raise ValueError(f"{outcome!r} is no outcome")
        timing = None
        if outcome == "ok":
            median, low, high = (seconds_of(record[name]) for name in ("median_s", "low_s", "high_s"))
            if median is None or low is None or high is None:
                raise ValueError("what ran has a time")
            kept, taken = whole(record["kept"]), whole(record["taken"])
            timing = Timing(median, low, high, kept, taken, bool(record["contended"]))
        conditions = Conditions(record["cache"], record["launch"]) if "cache" in record else None
        return cls(
            schedule_of(record["schedule"]),
            outcome,
            timing,
            str(record.get("detail", "")),
            seconds_of(record.get("predicted_s")),
            conditions,
            stage="final" if record.get("stage") == "final" else "screen",
        )


def trial_of(record: Mapping[str, Any]) -> Trial | None:
    """The trial of a line of the log; None for a line that was spoiled, or that another version wrote."""
    try:
        return Trial.from_json(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
