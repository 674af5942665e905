"""What a pipeline schedule is: a tuple of actions for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["F", "B", "W", "BW", "SEND", "RECV", "REDUCE", "GATHER"]
"""F: a stage's forward program. B: cotangents of its inputs. W: cotangents of its weights. BW: both in one program.

SEND starts a transfer to the next stage (what F makes) or the previous one (what B or BW makes) and goes on; RECV posts
the buffer for what a program of this stage reads, and goes on. Programs wait for what they read. REDUCE combines a
stage's gradients over the data-parallel ranks, GATHER collects its weights from them.
"""

PROGRAMS: Final = ("F", "B", "W", "BW")
BACKWARD: Final = ("B", "BW")
WEIGHTS: Final = ("W", "BW")


class Action(NamedTuple):
    """One step of a rank. `of` says what SEND and RECV carry: "F" an activation, "B" a cotangent; else it is empty.

    The microbatch of REDUCE and GATHER is -1.
    """

    kind: Kind
    stage: int
    microbatch: int
    of: Literal["", "F", "B"] = ""

    def __str__(self) -> str:
        if self.microbatch < 0:
            return f"{self.kind}.{self.stage}"
        name = f"{self.kind}({self.of})" if self.of else self.kind
        return f"{name}{self.microbatch}.{self.stage}"


@dataclass(frozen=True)
class PipelineSchedule:
    """Who does what in which order: `ranks[r]` are the actions of rank r.

    A rank holds `chunks` stages; stage s stands on rank s % len(ranks).
    """

    name: str
    microbatches: int
    chunks: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """All stages, in the order of the model."""
        return len(self.ranks) * self.chunks

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return stage % len(self.ranks)

    def programs(self) -> Iterator[tuple[int, Action]]:
        """(rank, action) of everything that computes."""
        for rank, actions in enumerate(self.ranks):
            for action in actions:
                if action.kind in PROGRAMS:
                    yield rank, action

    def __str__(self) -> str:
        """The table, a line for each rank."""
        width = max((len(str(action)) for actions in self.ranks for action in actions), default=0)
        lines = [f"{self.name}: {len(self.ranks)} ranks, {self.microbatches} microbatches, {self.chunks} stages a rank"]
        for rank, actions in enumerate(self.ranks):
            lines.append(f"rank {rank}: " + " ".join(str(action).ljust(width) for action in actions).rstrip())
        return "\n".join(lines)


def producer(action: Action, stages: int, split: bool) -> Action | None:
    """The program of another stage whose result an action reads; None where it reads none.

    `split` says that the schedule has B and W apart, so that cotangents come of B and not of BW.
    """
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F" or (action.kind == "RECV" and action.of == "F"):
        return Action("F", stage - 1, microbatch) if stage else None
    if action.kind in BACKWARD or (action.kind == "RECV" and action.of == "B"):
        return Action("B" if split else "BW", stage + 1, microbatch) if stage + 1 < stages else None
    return None


def needs(action: Action, stages: int, split: bool) -> list[Action]:
    """The programs that must have run before a program: of its own stage, and of the one that it reads from."""
    stage, microbatch = action.stage, action.microbatch
    before: Mapping[str, list[Action]] = {
        "F": [],
        "B": [Action("F", stage, microbatch)],
        "BW": [Action("F", stage, microbatch)],
        "W": [Action("B", stage, microbatch)],
    }
    found = list(before[action.kind])
    other = producer(action, stages, split)
    return [*found, other] if other else found


def is_split(schedule: PipelineSchedule) -> bool:
    """Whether a schedule has B and W apart."""
    return any(action.kind == "B" for _, action in schedule.programs())
