"""Layouts: which iteration axes a kernel has once adjacent dimensions with chaining strides are merged.

A kernel is generated for a *pattern* of axes and static strides, not for extents. This is the part of binding that runs
for every new shape, so it works on plain tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

Strides: TypeAlias = tuple[int, ...]
"""Element strides of one array over the domain's dimensions: 0 where it does not vary."""

Column: TypeAlias = tuple[int, ...]
"""Element strides of all arrays along one dimension or axis."""


class Axes(NamedTuple):
    """Merged axes: the extent of each, and the strides along it."""

    extents: tuple[int, ...]
    columns: tuple[Column, ...]


_NO_AXES = Axes((), ())


def merge_axes(extents: Sequence[int], columns: Sequence[Column]) -> Axes:
    """Drops dimensions of extent 1 and merges neighbours wherever every array's strides chain, or nothing is walked."""
    if not extents:
        return _NO_AXES
    kept_extents: list[int] = []
    kept: list[Column] = []
    for extent, column in zip(extents, columns, strict=True):
        if extent == 1:
            continue
        if kept and (kept_extents[-1] * extent == 0 or kept[-1] == tuple([stride * extent for stride in column])):
            kept_extents[-1] *= extent
            kept[-1] = column
        else:
            kept_extents.append(extent)
            kept.append(column)
    return Axes(tuple(kept_extents), tuple(kept))


@lru_cache(maxsize=64)
def _identity(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def domain_strides(strides: Strides, mapping: Sequence[int | None], rank: int) -> Strides:
    """Strides of an array over a domain of `rank` dimensions; `mapping` says which one each of its dimensions walks."""
    if mapping == _identity(rank):
        return strides
    result = [0] * rank
    for stride, dimension in zip(strides, mapping, strict=True):
        if dimension is not None:
            result[dimension] = stride
    return tuple(result)
