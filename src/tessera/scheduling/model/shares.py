"""What defaults may count on of a CPU: parts of its caches, and how much work is worth waking another worker.

A default was found on some machine; what is written down is the part of that machine's cache that it took, so that
another machine, or a virtual one with less, gets another default. Where a target does not say what it has, `usual` is
taken: what the machine had on which the default was found (Zen 4: 32 KiB, 1 MiB and 32 MiB).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tessera.target import Target
from tessera.target.facts import USUAL_WAKE_S

L1_BYTES: Final = 32 << 10
L2_BYTES: Final = 1 << 20
LAST_BYTES: Final = 32 << 20
"""The caches of the machine on which defaults were found."""

USUAL_FLOP_PER_CYCLE: Final = 32
"""What its core does of fp32 in a cycle."""

MOST_WAKING, MOST_IN_DOUBT = 64, 4
"""How many times its cost of waking a worker counts at most; fewer where that was measured while others wanted the CPU,
who need not want it any more.
"""


def near_bytes(target: Target) -> int:
    """The bytes of the first cache."""
    return target.cache_bytes("L1") or L1_BYTES


def second_bytes(target: Target) -> int:
    """The bytes of the second cache."""
    return target.cache_bytes("L2") or L2_BYTES


def last_bytes(target: Target) -> int:
    """The bytes of the last cache, but no more than the machine had on which defaults were found: what a larger one
    keeps beside other cores' data nobody measured.
    """
    return min(target.cache_bytes("L3") or target.cache_bytes("L2") or LAST_BYTES, LAST_BYTES)


def waking(target: Target) -> float:
    """How many times as much work another worker has to take over, as on the machine on which bounds were found,
    before waking it pays: a power of two, so that two measurements agree.
    """
    if target.core is None:
        return 1.0
    most = MOST_IN_DOUBT if target.core.in_doubt else MOST_WAKING
    return min(2.0 ** max(0, round(math.log2(target.wake_s / USUAL_WAKE_S))), most)


def sharing_flops(target: Target, usual: int) -> float:
    """The work below which a second worker costs more than it saves, in FLOP; `usual` is what that was where a core
    does `USUAL_FLOP_PER_CYCLE`.
    """
    if target.core is None:
        return usual
    does = 2 * target.fma_per_cycle * target.vector_bits // 32 / USUAL_FLOP_PER_CYCLE
    return usual * waking(target) * max(does, 1.0)


class Share(NamedTuple):
    """A part of all work, as a quotient of integers: these may be symbolic (`lazy/symbols`), which floats may not."""

    part: int
    whole: int

    def is_within(self, factor: tuple[int, int], other: Share) -> bool:
        """Whether it is at most so many times another, a factor that is a quotient, too."""
        return self.part * other.whole * factor[1] <= factor[0] * other.part * self.whole


def share_of(extent: int, workers: int) -> Share:
    """The part of an extent that the busiest of some workers has."""
    return Share(min(extent, -(-extent // workers)), max(extent, 1))
