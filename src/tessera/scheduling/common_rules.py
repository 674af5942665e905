"""What maps, reductions and windows have in common: who shares the work, and when results bypass the caches."""

from __future__ import annotations

from typing import Final, Protocol

from tessera.scheduling.columns import Knobs, Number, no
from tessera.target import Target

STREAMED_BYTES: Final = 4 << 20
"""The smallest result for which bypassing the caches is considered."""


class Written(Protocol):
    """What these rules ask of a problem."""

    @property
    def bytes_out(self) -> int:
        """The compulsory traffic of the results."""

    @property
    def workers(self) -> int:
        """The workers that share the kernel's work."""


def streams_what_is_large(schedule: Knobs, problem: Written) -> Number:
    """Whether non-temporal stores are left to results larger than caches."""
    return no(schedule.flag("nontemporal")) | (problem.bytes_out >= STREAMED_BYTES)


def cuts_for_several(schedule: Knobs, problem: Written) -> Number:
    """Whether another dimension than the outer one is cut for several workers only."""
    return schedule.equals("parallel", "outer") | (problem.workers > 1)


def cache_bytes(target: Target) -> int:
    """Size of the last cache: larger results are gone from it before anyone reads them, so that they may bypass it.

    On Zen 4 (32 MiB of L3) a layer norm of 64 MiB gained a half by it, a copy two thirds.
    """
    sizes = [level.size_bytes for level in target.memory if level.name.startswith("L")]
    return max(STREAMED_BYTES, *sizes) if sizes else 32 << 20
