"""Layouts: which iteration axes a kernel has once adjacent dimensions with chaining strides are merged.

A kernel is generated for a *pattern* of axes and static strides, not for extents. This is the part of binding that runs
for every new shape, so it works on plain tuples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

Strides: TypeAlias = tuple[int, ...]
"""Element strides of one array over the domain's dimensions: 0 where it does not vary."""

Column: TypeAlias = tuple[int, ...]
"""Element strides of all arrays along one dimension or axis."""


class Axes(NamedTuple):
    """Merged axes: the extent of each, and the strides along it."""

    extents: tuple[int, ...]
    columns: tuple[Column, ...]


_NO_AXES = Axes((), ())


UNLIMITED: Final = sys.maxsize
"""Any extent."""


def merge_axes(extents: Sequence[int], columns: Sequence[Column], largest: int = UNLIMITED) -> Axes:
    """Drops dimensions of extent 1 and merges neighbours wherever every array's strides chain, or nothing is walked, up
    to a `largest` extent.
    """
    if not extents:
        return _NO_AXES
    kept_extents: list[int] = []
    kept: list[Column] = []
    for extent, column in zip(extents, columns, strict=True):
        if extent == 1:
            continue
        merged = kept_extents[-1] * extent if kept else 1
        if kept and merged == 0:
            # What walks either walks both: kernels load an operand that does not walk a loop in front of it.
            kept_extents[-1] = 0
            kept[-1] = tuple([stride or outer for stride, outer in zip(column, kept[-1], strict=True)])
        elif kept and merged <= largest and kept[-1] == tuple([stride * extent for stride in column]):
            kept_extents[-1] = merged
            kept[-1] = column
        else:
            kept_extents.append(extent)
            kept.append(column)
    return Axes(tuple(kept_extents), tuple(kept))


def domain_strides(strides: Strides, mapping: tuple[int | None, ...], rank: int) -> Strides:
    """Strides of an array over a domain of `rank` dimensions; `mapping` says which one each of its dimensions walks."""
    pick = _pick(mapping, rank)
    return strides if pick is None else pick((*strides, 0))


@lru_cache(maxsize=1 << 10)
def _pick(mapping: tuple[int | None, ...], rank: int) -> Callable[[Strides], Strides] | None:
    """Takes an array's strides, and a 0 after them, to those over a domain; None where they are the same."""
    if mapping == tuple(range(rank)):
        return None
    places = [mapping.index(dimension) if dimension in mapping else -1 for dimension in range(rank)]
    if rank < 2:  # of one item, itemgetter gives the item
        return lambda strides: tuple([strides[place] for place in places])
    return itemgetter(*places)
