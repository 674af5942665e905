"""Anchors of operators that read some dimensions whole: along an axis, at places that a tensor says, by a transform.

They are functions of extents (`Operator.known_anchor`). What is read whole has axes of its own in each tensor, along
which an element depends on its place; all other dimensions are axes that operands and result share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from tessera.ir.anchors.anchor import ADD, Anchor, Extent, Index, Reduction

Named: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = tuple[int, ...]
Labels: TypeAlias = tuple[str | None, ...]
"""The axis of each dimension; None of what is read whole."""


@lru_cache(maxsize=1 << 10)
def _labelled(operands: tuple[Labels, ...], result: Labels, summed: frozenset[str] = frozenset()) -> Anchor:
    placed: set[str] = set()

    def read(labels: Labels, tensor: str) -> tuple[Index, ...]:
        names = [label or f"{tensor}{dimension}" for dimension, label in enumerate(labels)]
        placed.update(name for name, label in zip(names, labels, strict=True) if label is None)
        return tuple(Index((name,)) for name in names)

    tensors = tuple(read(labels, f"whole{number}_") for number, labels in enumerate(operands))
    made = read(result, "made")
    given: dict[str, Extent] = {index.axes[0]: None for index, label in zip(made, result, strict=True) if label is None}
    reduced: dict[str, Reduction] = dict.fromkeys(sorted(summed), ADD)
    return Anchor(tensors, made, reduced, given, frozenset(placed))


def aligned(shapes: Sequence[Shape], whole: Collection[int]) -> Anchor:
    """Tensors of one rank, whose dimensions `whole` are read whole, and those along which their extents differ."""
    free = tuple(
        None if dimension in whole or len(set(extents)) > 1 else f"d{dimension}"
        for dimension, extents in enumerate(zip(*shapes, strict=True))
    )
    return _labelled((free,) * len(shapes), free)


def row(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """Along `axis`: sorts, scans, selections, and what is read or added at places along it."""
    return aligned(shapes, (attributes["axis"],))


def transform(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """Along several `axes`."""
    return aligned(shapes, attributes["axes"])


def refitted(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """Cut or filled up to `shape`, along dimensions whose extents that changes."""
    changed = [d for d, pair in enumerate(zip(shapes[0], attributes["shape"], strict=True)) if pair[0] != pair[1]]
    return aligned(shapes, changed)


def _around(rank: int, axis: int) -> tuple[Labels, Labels]:
    """The dimensions in front of an axis, and those behind it."""
    return tuple(f"d{d}" for d in range(axis)), tuple(f"d{d}" for d in range(axis + 1, rank))


def _indices(shape: Shape) -> tuple[str, ...]:
    return tuple(f"i{d}" for d in range(len(shape)))


def taken(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """Parts of the first operand along `axis` at the places that the second says, whose dimensions stand there."""
    x, index = shapes
    before, after = _around(len(x), attributes["axis"])
    places = _indices(index)
    return _labelled(((*before, None, *after), places), (*before, *places, *after))


def summed(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """The transpose of `taken`: parts are added up at the places that the second operand says."""
    x, index = shapes
    places = _indices(index)
    before, after = _around(len(x) - len(index) + 1, attributes["axis"])
    return _labelled(((*before, *places, *after), places), (*before, None, *after), frozenset(places))


def replaced(shapes: Sequence[Shape], attributes: Named) -> Anchor:
    """Parts of the first operand along `axis` are replaced by those of the third, at the places of the second."""
    x, index, _ = shapes
    before, after = _around(len(x), attributes["axis"])
    places: Labels = (None,) * len(index)
    return _labelled(((*before, None, *after), places, (*before, *places, *after)), (*before, None, *after))
