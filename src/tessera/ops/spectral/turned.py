"""Spectra whose points stay where a long transform over devices leaves them, until something asks for their order.

A transform of n = r c points over rows and columns (`spelling.py`) ends with Y[k1, k2] = X[k1 + r k2], whose rows are
split. Putting that in order is an exchange, and the inverse would begin with another one to take it apart again. What
is computed point by point takes Y as it takes X, and the inverse of Y is

    x[n1 c + n2] = sum_k1 W_r^(n1 k1)  W_n^(n2 k1)  sum_k2 W_c^(n2 k2)  Y[k1, k2]

of which every device has the inner sum already. So two of six exchanges are left out between a transform and its
inverse: the rewrite "turned spectra".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops.algebra import call
from tessera.ops.record import OPERATORS, Operator
from tessera.ops.spectral import spelling

N: TypeAlias = Any


@dataclass(frozen=True)
class TurnedPoints:
    """Which points: those along a dimension `axis` of a tensor, [rows * columns], as [rows, columns] of which a row has
    every `rows`-th one.
    """

    axis: int
    rows: int
    columns: int

    def in_order(self, y: N) -> N:
        """The points as a tensor has them."""
        return spelling.columns_first(y, self.axis)

    def of(self, x: N, axis: int) -> N:
        """What belongs to the points in another tensor, along one of its dimensions, turned as these are."""
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        if x.shape[axis] == 1:
            return call("reshape", x, shape=(*before, 1, 1, *after))
        apart = call("reshape", x, shape=(*before, self.columns, self.rows, *after))
        order = (*range(axis), axis + 1, axis, *range(axis + 2, len(x.shape) + 1))
        return call("transpose", apart, permutation=order)


def lead_to_transforms(order: Sequence[Occurrence]) -> list[bool]:
    """By place, whether a transform along one axis reads a value, or what is computed of it point by point."""
    found = [False] * len(order)
    if sum(_is_transform(occurrence.structure) for occurrence in order) < 2:
        return found
    for place in range(len(order) - 1, -1, -1):
        structure = order[place].structure
        if structure.operator is None:
            continue
        if _is_transform(structure) or (found[place] and is_by_points(OPERATORS[structure.operator.name])):
            for operand in order[place].operands:
                found[operand] = True
    return found


def is_by_points(operator: Operator) -> bool:
    """Whether an operator computes an element from those at its place, so that it may be applied to turned points."""
    return operator.kind.is_map or operator.anchor in (anchor_rules.broadcast, *_PARTS)


def axis_after(operator: Operator, axis: int, rank: int, result: int) -> int:
    """The dimension of a result of so many dimensions that an operand's dimension becomes, point by point."""
    return axis if operator.anchor in _PARTS else axis + result - rank


_PARTS = (anchor_rules.parts, anchor_rules.pairs)
"""Of complex numbers: their parts lie along a last dimension."""


def _is_transform(structure: Structure) -> bool:
    operator = structure.operator
    return operator is not None and operator.name in spelling.SIGN and len(structure.named_attributes["axes"]) == 1


def turned_transform(structure: Structure, x: N) -> tuple[N, TurnedPoints] | None:
    """The transform that a structure is, of an operand that is split along its axis, turned; None for any other."""
    if not _is_transform(structure):
        return None
    named: Mapping[str, Any] = structure.named_attributes
    assert structure.operator is not None
    (axis,), (size,) = named["axes"], named["sizes"]
    found = spelling.by_rows_and_columns(structure.operator.name, x, axis, size, named["norm"])
    return None if found is None else (found[0], TurnedPoints(axis, found[1], x.shape[axis] // found[1]))


def transform_of_turned(structure: Structure, y: N, points: TurnedPoints) -> N | None:
    """The transform that a structure is, in order, of points that are turned; None for one along other points."""
    if not _is_transform(structure):
        return None
    named: Mapping[str, Any] = structure.named_attributes
    assert structure.operator is not None
    count = points.rows * points.columns
    if named["axes"] != (points.axis,) or named["sizes"][0] not in (None, count):
        return None
    return spelling.of_turned(structure.operator.name, y, points.axis, named["norm"])
