"""Places temporaries in one arena so that those alive at the same time never overlap.

Greedy by size: the largest temporary is placed first, each at the lowest offset that is free during its whole life
(Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, algorithm "Greedy by Size for
Offset Calculation", which comes within a few per cent of the lower bound on real networks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary of `nbytes` bytes, written by step `first` and read last by step `last` (both inclusive)."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Byte offsets (multiples of 64) in the order of the lifetimes given, and the size of the arena."""

    offsets: tuple[int, ...]
    nbytes: int


NOTHING_PLACED: Final = ArenaLayout((), 0)


def round_up(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


def place(lifetimes: Sequence[Lifetime]) -> ArenaLayout:
    """Offsets for all temporaries. Raises ValueError for a life that ends before it begins, or a negative size."""
    for lifetime in lifetimes:
        if lifetime.last < lifetime.first or lifetime.nbytes < 0:
            raise ValueError(f"not a lifetime: {lifetime}")
    offsets = [0] * len(lifetimes)
    alive: dict[int, list[int]] = {}  # step -> those placed that are alive then
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda each: (-lifetimes[each].nbytes, lifetimes[each].first, each)):
        lifetime = lifetimes[index]
        steps = range(lifetime.first, lifetime.last + 1)
        others = {other for step in steps for other in alive.get(step, ())}
        taken = sorted((offsets[other], offsets[other] + round_up(lifetimes[other].nbytes)) for other in others)
        offsets[index] = _lowest_gap(taken, round_up(lifetime.nbytes))
        total = max(total, offsets[index] + round_up(lifetime.nbytes))
        for step in steps:
            alive.setdefault(step, []).append(index)
    return ArenaLayout(tuple(offsets), total)


def _lowest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The lowest offset with `nbytes` free; `taken` holds (begin, end), sorted."""
    offset = 0
    for begin, end in taken:
        if offset + nbytes <= begin:
            return offset
        offset = max(offset, end)
    return offset
