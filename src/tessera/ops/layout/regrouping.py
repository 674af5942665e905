"""The anchor of reshapes: which dimensions of a tensor and of the same elements under another shape are one axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from tessera.ir.anchors.anchor import Anchor, Extent, Index
from tessera.lazy.structures.structure import Shape
from tessera.ops.record import Named

_ONE: Final = Index(())


def regrouped(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """Dimensions that hold the same elements in the same order share axes.

        (6, 4) -> (2, 3, 4)    the operand is [(r0 r1), r2], the result [r0, r1, r2]
        (4, 6) -> (3, 8)       no border within is one of both: each side has axes of its own

    Dimensions of 1 hold no axis.
    """
    return _regrouped(shapes[0], tuple(attributes["shape"]))


@lru_cache(maxsize=1024)
def _regrouped(shape: Shape, target: Shape) -> Anchor:
    given: dict[str, Extent] = {}
    operand, result = [_ONE] * len(shape), [_ONE] * len(target)
    for ours, theirs in _groups(shape, target):
        extents, others = [shape[d] for d in ours], [target[d] for d in theirs]
        ends = sorted({*itertools.accumulate(extents, int.__mul__), *itertools.accumulate(others, int.__mul__)})
        nested = 0 not in ends and all(after % before == 0 for before, after in itertools.pairwise(ends))
        names = (
            {end: _new_axis(given, end // before) for before, end in itertools.pairwise([1, *ends])} if nested else {}
        )
        for side, dims, held in ((operand, ours, extents), (result, theirs, others)):
            last = 1
            for dimension, extent in zip(dims, held, strict=True):
                first, last = last, last * extent
                axes = [name for end, name in names.items() if first < end <= last]
                side[dimension] = Index(tuple(axes) if nested else (_new_axis(given, extent),))
    return Anchor((tuple(operand),), tuple(result), given=given)


def _new_axis(given: dict[str, Extent], extent: int) -> str:
    name = f"r{len(given)}"
    given[name] = extent
    return name


def _groups(shape: Shape, target: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """The least runs of dimensions of both, but for those of 1, that hold the same elements."""
    ours, theirs = ([d for d, extent in enumerate(each) if extent != 1] for each in (shape, target))
    if 0 in shape:
        yield ours, theirs
        return
    while ours:
        first, second = [ours.pop(0)], [theirs.pop(0)]
        while (held := _product(shape, first)) != (wanted := _product(target, second)):
            if held < wanted:
                first.append(ours.pop(0))
            else:
                second.append(theirs.pop(0))
        yield first, second


def _product(shape: Shape, dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)
