"""What maps, reductions and windows have in common: who shares the work, and when results bypass the caches."""

from __future__ import annotations

from typing import Protocol

from tessera.scheduling.language.columns import Knobs, Number, no
from tessera.scheduling.model.shares import last_bytes
from tessera.target import Target


class Written(Protocol):
    """What these rules ask of a problem."""

    @property
    def bytes_out(self) -> int:
        """The compulsory traffic of the results."""

    @property
    def workers(self) -> int:
        """The workers that share the kernel's work."""

    @property
    def target(self) -> Target:
        """The CPU."""


class Streaming(Protocol):
    """A problem of which it is asked whether its results stay in the caches."""

    @property
    def bytes_in(self) -> int:
        """The compulsory traffic of the operands."""

    @property
    def bytes_out(self) -> int:
        """That of the results."""

    @property
    def target(self) -> Target:
        """The CPU."""


def streamed_bytes(target: Target) -> int:
    """The smallest result for which bypassing the caches is considered: an eighth of the last one."""
    return last_bytes(target) // 8


def streams_what_is_large(schedule: Knobs, problem: Written) -> Number:
    """Whether non-temporal stores are left to results larger than caches."""
    return no(schedule.flag("nontemporal")) | (problem.bytes_out >= streamed_bytes(problem.target))


def cuts_for_several(schedule: Knobs, problem: Written) -> Number:
    """Whether another dimension than the outer one is cut for several workers only."""
    return schedule.equals("parallel", "outer") | (problem.workers > 1)


def leaves_caches(problem: Streaming) -> bool:
    """Whether results are gone from the last cache before anyone reads them, so that they may bypass it: those of a
    kernel that walks through half of it.

    On Zen 4 (32 MiB of L3) layer norms of 8 and 12 MiB beside as much input take 0.45 and 0.63 of the time so, those of
    64 MiB two thirds; softmax of 4 MiB takes 1.07.
    """
    if problem.bytes_out < streamed_bytes(problem.target):
        return False
    return problem.bytes_in + problem.bytes_out >= last_bytes(problem.target) // 2
