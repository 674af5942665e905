"""In how many pieces products beside exchanges are computed, where nobody says it: by the model, or by trying."""

from __future__ import annotations

from typing import Final

import torch

from tessera.sharding.partitioning.chunking import choices_of
from tessera.sharding.partitioning.program import LocalProgram
from tessera.sharding.partitioning.schedule import OverlapLimits
from tessera.sharding.planner.local_programs import predicted, rates_of
from tessera.sharding.tensors.mesh import Mesh

ROUNDS: Final = 3
"""Calls of each choice that are timed, after one that is not: it may compile."""


def modelled(program: LocalProgram, limits: OverlapLimits, topology: str | None) -> int:
    """The choice that is predicted to be fastest on a topology; of equals the fewest pieces. It is the same on every
    rank.
    """
    rates = rates_of(topology)
    return min(choices_of(program), key=lambda count: predicted(program, limits, count, rates).seconds)


class ChunkTrials:
    """The calls of a program that try each choice in turn; afterwards `choice` is what was fastest."""

    def __init__(self, program: LocalProgram) -> None:
        self._choices = choices_of(program)
        self._times: list[list[float]] = [[] for _ in self._choices]
        self._count = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to try."""
        return len(self._choices) == 1

    @property
    def choice(self) -> int:
        """What the next call takes."""
        return self._choices[self._count % len(self._choices)]

    def add(self, seconds: float, mesh: Mesh) -> None:
        """A call took so long. After the last one the ranks of a job settle on one choice, a collective."""
        if self._count >= len(self._choices):
            self._times[self._count % len(self._choices)].append(seconds)
        self._count += 1
        if self._count == len(self._choices) * (ROUNDS + 1):
            worst = torch.tensor([min(times) for times in self._times], dtype=torch.float64, device="cpu")
            if mesh.state == "running":
                worst = mesh.job.communicator(mesh.devices).all_reduce(worst, "max")
            self._choices, self._count = (self._choices[int(worst.argmin())],), 0
