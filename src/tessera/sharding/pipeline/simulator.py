"""What a schedule takes: when each program runs, the bubble, and how many activations a rank keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tessera.errors import ArgumentError
from tessera.sharding.pipeline.actions import PROGRAMS, WEIGHTS, Action, PipelineSchedule, is_split, needs
from tessera.sharding.pipeline.verifier import ordered


class ProgramTimes(NamedTuple):
    """Seconds of a stage's programs; `transfer` is from the end of one to the start of its reader on another rank."""

    forward: float
    inputs: float
    weights: float
    transfer: float = 0.0

    def of(self, action: Action) -> float:
        """How long a program takes."""
        return {"F": self.forward, "B": self.inputs, "W": self.weights, "BW": self.inputs + self.weights}[action.kind]


EQUAL: Final = ProgramTimes(1.0, 1.0, 1.0)
"""All programs of one length, and messages that take no time."""


class ProgramSpan(NamedTuple):
    """When a program ran, in seconds."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A simulated step. Every number is predicted from the times that were given."""

    schedule: PipelineSchedule
    spans: tuple[ProgramSpan, ...]

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max(span.end for span in self.spans)

    @property
    def work_s(self) -> tuple[float, ...]:
        """Seconds that each rank computes."""
        ranks = range(len(self.schedule.ranks))
        return tuple(sum(span.end - span.start for span in self.spans if span.rank == rank) for rank in ranks)

    @property
    def bubble(self) -> float:
        """Idle time by work time, over all ranks: (p - 1)/m for gpipe and 1f1b of equal stages."""
        work = sum(self.work_s)
        return (self.seconds * len(self.schedule.ranks) - work) / work

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """The most microbatches of stages whose saved values a rank keeps at once, from F to the end of W."""
        return peaks(self.schedule)

    def __str__(self) -> str:
        kept = ", ".join(map(str, self.peak_activations))
        return (
            f"{self.schedule.name}: {1e3 * self.seconds:.3g} ms predicted, "
            f"bubble {100 * self.bubble:.1f} % of the work, activations kept by rank {kept}"
        )


def peaks(schedule: PipelineSchedule) -> tuple[int, ...]:
    """The most activations that each rank keeps at once; order alone decides it, not time."""
    found = []
    for actions in schedule.ranks:
        kept = most = 0
        for action in actions:
            kept += (action.kind == "F") - (action.kind in WEIGHTS)
            most = max(most, kept)
        found.append(most)
    return tuple(found)


def simulate(schedule: PipelineSchedule, times: ProgramTimes | Sequence[ProgramTimes] = EQUAL) -> Timeline:
    """Runs a schedule on paper: a program starts when its rank is free and what it reads has arrived.

    `times` are one stage's, or a row for each stage. Raises PipelineError for a schedule that cannot end, ArgumentError
    for another number of rows.
    """
    rows = [times] * schedule.stages if isinstance(times, ProgramTimes) else list(times)
    if len(rows) != schedule.stages:
        raise ArgumentError(f"{len(rows)} rows of times for {schedule.stages} stages")
    split = is_split(schedule)
    ends: dict[Action, float] = {}
    free = [0.0] * len(schedule.ranks)
    spans = []
    for rank, action in ordered(schedule):
        if action.kind not in PROGRAMS:
            continue
        start = free[rank]
        for other in needs(action, schedule.stages, split):
            away = schedule.rank_of(other.stage) != rank
            start = max(start, ends[other] + (rows[other.stage].transfer if away else 0.0))
        ends[action] = free[rank] = start + rows[action.stage].of(action)
        spans.append(ProgramSpan(rank, action, start, ends[action]))
    return Timeline(schedule, tuple(spans))
