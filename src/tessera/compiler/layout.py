"""Layouts: which iteration axes a kernel has once adjacent dimensions with chaining strides are merged.

A kernel is generated for a *pattern* of axes and static strides, not for extents. This is the part of binding that runs
for every new shape, so it works on plain tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Strides: TypeAlias = tuple[int, ...]
"""Element strides of one array over the domain's dimensions: 0 where it does not vary."""


class Axes(NamedTuple):
    """Merged axes: extents, and for each array its stride along each."""

    extents: tuple[int, ...]
    strides: tuple[Strides, ...]


def merge_axes(extents: Sequence[int], arrays: Sequence[Strides]) -> Axes:
    """Drops dimensions of extent 1 and merges neighbours wherever every array's strides chain, or nothing is walked."""
    kept_extents: list[int] = []
    kept: list[list[int]] = [[] for _ in arrays]
    for dimension, extent in enumerate(extents):
        if extent == 1:
            continue
        column = [strides[dimension] for strides in arrays]
        chains = bool(kept_extents) and (
            kept_extents[-1] * extent == 0
            or all(own[-1] == stride * extent for own, stride in zip(kept, column, strict=True))
        )
        if chains:
            kept_extents[-1] *= extent
            for own, stride in zip(kept, column, strict=True):
                own[-1] = stride
        else:
            kept_extents.append(extent)
            for own, stride in zip(kept, column, strict=True):
                own.append(stride)
    return Axes(tuple(kept_extents), tuple(tuple(own) for own in kept))


def domain_strides(strides: Strides, mapping: Sequence[int | None], rank: int) -> Strides:
    """Strides of an array over a domain of `rank` dimensions; `mapping` says which one each of its dimensions walks."""
    result = [0] * rank
    for stride, dimension in zip(strides, mapping, strict=True):
        if dimension is not None:
            result[dimension] = stride
    return tuple(result)
