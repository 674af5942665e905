"""The rule by which an operator shards: which axes of its anchor may be split over devices, and what its operands and
its result then look like. All of it is read off the anchor, and off the body as far as sums are concerned.

An axis may be split where every dimension that holds it holds it first (major), where no window slides along it, and
where an element does not depend on its place along it. An axis that is reduced may be, where results of its parts are
reduced to the result; that is then *pending* along the axes of the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tessera.dtypes import DType
from tessera.ir.anchors.anchor import ADD, MUL, Anchor, Index, Reduction
from tessera.lazy.layouts import Layout, MeshShape, Shape, layout, split
from tessera.ops.record import Operator
from tessera.sharding.partitioning.bodies import combines

Dimensions: TypeAlias = tuple[tuple[str | None, ...], ...]
"""For each tensor, for each of its dimensions: the axis of the anchor that splits it; None where nothing may."""


@dataclass(frozen=True)
class ShardingRule:
    """How one operator over operands of known shapes shards."""

    operands: Dimensions
    result: tuple[str | None, ...]
    extents: Mapping[str, int]
    """Of the axes that may be split."""
    reduced: Mapping[str, Reduction]
    """Those that the result has no dimension for, and what its parts are reduced by."""
    bounds: Mapping[str, tuple[int, ...]]
    """By axis, the extents of dimensions that hold it with other axes behind it."""
    nonempty: frozenset[str]
    """Axes of which no part may be empty, since nothing is no extreme."""

    def permits(self, axis: str, splits: tuple[int, ...]) -> bool:
        """Whether an axis may be split into so many parts, one way after the other: dimensions that hold more than the
        axis have to be cut where it is.
        """
        return _permitted(self.extents[axis], self.bounds.get(axis, ()), axis in self.nonempty, splits)


@lru_cache(maxsize=1 << 12)
def _permitted(extent: int, held: tuple[int, ...], nonempty: bool, splits: tuple[int, ...]) -> bool:
    for place in _places(splits):
        pairs = tuple(zip(place, splits, strict=True))
        first, end = split(extent, pairs)
        if nonempty and first == end:
            return False
        for whole in held:
            rest = whole // extent if extent else 0
            start, stop = split(whole, pairs)
            if start != stop and (start, stop) != (first * rest, end * rest):
                return False
            if start == stop and first != end:
                return False
    return True


def _places(splits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not splits:
        yield ()
        return
    for place in range(splits[0]):
        for rest in _places(splits[1:]):
            yield (place, *rest)


@lru_cache(maxsize=1 << 12)
def rule_of(
    operator: Operator,
    attributes: tuple[Any, ...],
    shapes: tuple[Shape, ...],
    dtypes: tuple[DType, ...],
    result: Shape,
) -> ShardingRule | None:
    """The rule of an operator; None where no anchor says how its data move, so that all of it has to be whole."""
    named = dict(zip(operator.attribute_names, attributes, strict=True))
    anchor = operator.anchored_over(shapes, named)
    if anchor is None:
        return None
    known = {axis: extent or 0 for axis, extent in anchor.extents(shapes).items()}
    whole = _whole_axes(operator, attributes, anchor, (*shapes, result), dtypes, known)
    tensors = (*anchor.operands, anchor.result)
    held = [
        tuple(_splitting(index, extent, known, whole) for index, extent in zip(indices, shape, strict=True))
        for indices, shape in zip(tensors, (*shapes, result), strict=True)
    ]
    axes = {axis for dimensions in held for axis in dimensions if axis is not None}
    reduced = {axis: by for axis, by in anchor.reduced.items() if axis in axes and by != "row"}
    bounds: dict[str, tuple[int, ...]] = {}
    for dimensions, shape in zip(held, (*shapes, result), strict=True):
        for axis, extent in zip(dimensions, shape, strict=True):
            if axis is not None and extent != known[axis]:
                bounds[axis] = (*bounds.get(axis, ()), extent)
    nonempty = frozenset(axis for axis, by in reduced.items() if by not in (ADD, MUL))
    return ShardingRule(tuple(held[:-1]), held[-1], {axis: known[axis] for axis in axes}, reduced, bounds, nonempty)


def _whole_axes(
    operator: Operator,
    attributes: tuple[Any, ...],
    anchor: Anchor,
    shapes: Sequence[Shape],
    dtypes: tuple[DType, ...],
    known: Mapping[str, int],
) -> set[str]:
    """Axes that may not be split, of an anchor over operands and a result of these shapes."""
    whole = set(anchor.placed)
    # A part of a sum, rounded to 8 bits, would be too coarse to add up.
    coarse = any(dtype.kind == "float" and dtype.itemsize == 1 for dtype in dtypes)
    reduces = bool(anchor.reduced) and not coarse and combines(operator, attributes, dtypes)
    whole |= {axis for axis, by in anchor.reduced.items() if by == "row" or not reduces}
    # Attributes that say extents are those of a result's shape, which a shard's own replaces; others stay as they are.
    if not repeating(operator, attributes, shapes[-1]):
        whole |= set(anchor.given)
    for indices, shape in zip((*anchor.operands, anchor.result), shapes, strict=True):
        for index, extent in zip(indices, shape, strict=True):
            axis = _plain_axis(index, extent, known)
            if axis is None:
                whole |= set(index.axes)
            else:
                whole |= set(index.axes) - {axis}
    made = {axis for index in anchor.result for axis in index.axes}
    return whole | {axis for axis in known if axis not in made and axis not in anchor.reduced}


def _plain_axis(index: Index, extent: int, known: Mapping[str, int]) -> str | None:
    """The major axis of a dimension that is read from its first element to its last; None for any other."""
    if index.joined:
        return None
    if not index.steps:
        return next(iter(_major_first(index, known)), "")
    same = len(index.axes) == 1 and index.steps == (1,) and not index.before and not index.after
    return index.axes[0] if same and known[index.axes[0]] == extent else None


def _major_first(index: Index, known: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a dimension without leading ones of a single element."""
    axes = index.axes
    while len(axes) > 1 and known[axes[0]] == 1:
        axes = axes[1:]
    return axes


def _splitting(index: Index, extent: int, known: Mapping[str, int], whole: set[str]) -> str | None:
    axis = _plain_axis(index, extent, known)
    if not axis or axis in whole:
        return None
    repeated = extent == 1 and math.prod([known[each] for each in index.axes]) != 1
    return None if repeated else axis


def repeating(operator: Operator, attributes: tuple[Any, ...], result: Shape) -> tuple[str, ...]:
    """The attributes that repeat the result's shape (`anchor_rules.with_result`)."""
    named = zip(operator.attribute_names, attributes, strict=True)
    return tuple(name for name, value in named if name in ("shape", "sizes") and value == result)


def with_result(operator: Operator, attributes: tuple[Any, ...], whole: Shape, shape: Shape) -> tuple[Any, ...]:
    """Attributes for a part of the result, of `shape`: those that repeat the `whole` one's shape have that."""
    repeated = repeating(operator, attributes, whole)
    named = zip(operator.attribute_names, attributes, strict=True)
    return tuple([shape if name in repeated else value for name, value in named])


@dataclass(frozen=True)
class ShardingStrategy:
    """Layouts in which an operator computes without communication: what operands have to lie as, and the result."""

    operands: tuple[Layout, ...]
    result: Layout


def strategy(
    rule: ShardingRule,
    mesh: MeshShape,
    split_by: Mapping[str, str],
    order: Sequence[str],
    passed: Mapping[str, frozenset[int]],
) -> ShardingStrategy | None:
    """The strategy that splits axes of the anchor by axes of the mesh: `split_by` has the anchor's axis of each of the
    mesh's, which split major first in their `order`; sums of the operands in `passed` stay pending along the others.
    """
    by_axis: dict[str, list[str]] = {}
    for axis in order:
        if axis in split_by:
            by_axis.setdefault(split_by[axis], []).append(axis)
    if not all(rule.permits(axis, tuple(map(mesh.size, over))) for axis, over in by_axis.items()):
        return None
    operands = tuple(
        _laid(mesh, dimensions, by_axis, [(axis, ADD) for axis, places in passed.items() if place in places])
        for place, dimensions in enumerate(rule.operands)
    )
    pending: list[tuple[str, Reduction]] = [(axis, ADD) for axis in passed]
    pending += [(axis, rule.reduced[by]) for axis, by in split_by.items() if by in rule.reduced]
    return ShardingStrategy(operands, _laid(mesh, rule.result, by_axis, pending))


def _laid(
    mesh: MeshShape,
    dimensions: Sequence[str | None],
    by_axis: Mapping[str, Sequence[str]],
    pending: Sequence[tuple[str, Reduction]],
) -> Layout:
    return layout(mesh, [by_axis.get(axis or "", ()) for axis in dimensions], pending)
