"""Which blocks of scores a mask leaves anything of: its expression over intervals.

A mask is algebra over positions and over what is read along queries or along keys. Over a block of both every integer
in it lies between two numbers, and every boolean may be true, or certainly is: positions between the first and the
last, operands between the least and the largest of the block, and what is computed of them as interval arithmetic says
(Moore, "Interval Analysis", 1966). A block where the mask may nowhere be true is not computed; where it certainly is,
it is not looked at.

    keys <= queries, queries 64 .. 79, keys 128 .. 255:     may be true: 128 <= 79, no
    document[queries] == document[keys]:                    may be true: the two intervals meet

Bounds are int64; where the mask's own integers may have wrapped around, nothing is said. Of floats nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import StringAttr, VectorType, i1
from xdsl.ir import Operation, SSAValue

from tessera.dtypes import DType, bool_, int64, uint8
from tessera.ir.tile import operations as tile
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.writer import TileWriter

Bounds: TypeAlias = tuple[SSAValue, SSAValue]
"""The least and the largest, tiles of one int64; of a boolean whether it certainly is true, and whether it may be."""

ONE: Final = (1, 1)
FACTORS: Final = -(1 << 30), (1 << 30) - 1
"""Bounds between these have products that int64 holds."""
TERMS: Final = -(1 << 61), (1 << 61) - 1
"""A sum of one between these and any other int64 is not between these where it has wrapped around."""

Writing: TypeAlias = Callable[[Mapping[str, int], Mapping[str, SSAValue]], TileWriter]
"""(sizes, positions) -> a writer of expressions."""


@dataclass(frozen=True)
class ScoreBlock:
    """A block of scores: positions of the first query and key, and of the last ones, and how many there may be of each.

    With `reads` what is read along queries and keys is looked at; else anything may stand there.
    """

    first: Mapping[str, SSAValue]
    last: Mapping[str, SSAValue]
    sizes: Mapping[str, int]
    reads: bool = True


def is_sparse(mask: Value | None) -> bool:
    """Whether looking at blocks of scores may find some that a mask hides as a whole."""
    return mask is not None and mask.dtype is bool_ and "k" in mask.axes


def is_placed(mask: Value | None) -> bool:
    """Whether a mask depends on positions, so that blocks of queries see more or fewer keys."""
    return mask is not None and any(each.operation == "count" and "q" in each.axes for each in post_order([mask]))


def is_read(mask: Value) -> bool:
    """Whether a mask is read as it stands, or for each query and key: intervals say little of such."""
    matrices = (each for each in post_order([mask]) if each.operation == "load" and {"q", "k"} <= each.axes)
    return mask.operation == "load" or next(matrices, None) is not None


def visibility(builder: TileBuilder, writing: Writing, mask: Value, block: ScoreBlock) -> Bounds:
    """Whether a mask certainly shows all of a block, and whether it may show any of it."""
    return _Intervals(builder, writing, block).of(mask)


class _Intervals:
    """Bounds of expressions over a block."""

    def __init__(self, builder: TileBuilder, writing: Writing, block: ScoreBlock) -> None:
        self.builder, self.writing, self.block = builder, writing, block
        self.safe: SSAValue | None = None
        """Whether no integer has wrapped around so far."""

    def of(self, mask: Value) -> Bounds:
        known: dict[Value, Bounds | None] = {}
        for value in post_order([mask]):
            known[value] = self._bounds(value, [known[argument] for argument in value.arguments])
        certain, possible = known[mask] or self._anything()
        if self.safe is None:
            return certain, possible
        return self._put(arith.AndIOp, certain, self.safe), self._put(arith.OrIOp, possible, self._not(self.safe))

    # -- one value --------------------------------------------------------------------------------------------------

    def _bounds(self, value: Value, arguments: list[Bounds | None]) -> Bounds | None:
        """The bounds; None where nothing is known."""
        if value.dtype.kind not in ("int", "bool"):
            return None
        if not value.axes & {"q", "k"} or value.operation == "constant":
            exact = self._at(value, self.block.first)
            return exact, exact
        if value.operation == "count":
            return self._at(value, self.block.first), self._at(value, self.block.last)
        if value.operation == "load":
            return self._loaded(value)
        if value.operation == "compare":
            compared = value.arguments[0].dtype
            known = compared.kind in ("int", "bool") and None not in arguments
            return self._compared(value.kind, *_both(arguments)) if known else self._anything()
        if None in arguments:
            return self._anything() if value.dtype is bool_ else None
        rule = (_LOGIC if value.dtype is bool_ else _ARITHMETIC).get(value.operation)
        if rule is None:
            return self._anything() if value.dtype is bool_ else None
        return rule(self, value, [bounds for bounds in arguments if bounds is not None])

    def _anything(self) -> Bounds:
        no, yes = (self.builder.splat(number, bool_, ONE) for number in (False, True))
        return no, yes

    def _loaded(self, value: Value) -> Bounds | None:
        walked = [axis for axis in ("q", "k") if axis in value.axes]
        if not self.block.reads or len(walked) > 1:
            return self._anything() if value.dtype is bool_ else None
        (axis,) = walked
        sizes = {each: self.block.sizes[each] if each == axis else 1 for each in ("q", "k")}
        shape, place = tuple(sizes.values()), ("q", "k").index(axis)
        whole = self.writing(sizes, self.block.first).write(value, shape)
        # What lies past the last position is as if it were the first, which is there.
        past = self.builder.add(self.block.last[axis], self.builder.index(1))
        there = self.builder.mask(self.block.first[axis], past, shape, place)
        first = self.builder.spread(self.writing(dict.fromkeys(sizes, 1), self.block.first).write(value, ONE), shape)
        inside = self.builder.append(tile.SelectOp.create(operands=[there, whole, first], result_types=[whole.type]))
        dtype = value.dtype
        if dtype is uint8:  # tiles compare bytes as if they had a sign
            inside, dtype = self.builder.cast(inside, int64), int64
        least, most = (self._wide(self.builder.reduce(inside, kind, place), dtype) for kind in ("min", "max"))
        return least, most

    def _at(self, value: Value, position: Mapping[str, SSAValue]) -> SSAValue:
        return self._wide(self.writing(dict.fromkeys(("q", "k"), 1), position).write(value, ONE), value.dtype)

    def _wide(self, value: SSAValue, dtype: DType) -> SSAValue:
        return value if dtype in (bool_, int64) else self.builder.cast(value, int64)

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def _put(self, make: Callable[..., Operation], *operands: SSAValue) -> SSAValue:
        return self.builder.append(make(*operands))

    def _number(self, value: int) -> SSAValue:
        return self.builder.splat(value, int64, ONE)

    def _not(self, value: SSAValue) -> SSAValue:
        return self._put(arith.XOrIOp, value, self.builder.splat(True, bool_, ONE))

    def _compare(self, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
        operation = tile.CompareOp.create(
            operands=[a, b], result_types=[VectorType(i1, list(ONE))], attributes={"predicate": StringAttr(kind)}
        )
        return self.builder.append(operation)

    def _compared(self, kind: str, a: Bounds, b: Bounds) -> Bounds:
        (least, most), (other_least, other_most) = a, b
        if kind in ("lt", "le"):
            return self._compare(kind, most, other_least), self._compare(kind, least, other_most)
        if kind in ("gt", "ge"):
            return self._compare(kind, least, other_most), self._compare(kind, most, other_least)
        same = self._put(arith.AndIOp, self._compare("eq", least, other_most), self._compare("eq", most, other_least))
        meet = self._put(arith.AndIOp, self._compare("le", least, other_most), self._compare("le", other_least, most))
        return (same, meet) if kind == "eq" else (self._not(meet), self._not(same))

    def _within(self, bounds: Bounds, limits: tuple[int, int]) -> Bounds:
        """The bounds, of which is noted whether they lie between these numbers."""
        low, high = map(self._number, limits)
        held = self._put(arith.AndIOp, self._compare("ge", bounds[0], low), self._compare("le", bounds[1], high))
        self.safe = held if self.safe is None else self._put(arith.AndIOp, self.safe, held)
        return bounds

    def _ordered(self, candidates: list[SSAValue]) -> Bounds:
        least = most = candidates[0]
        for each in candidates[1:]:
            least, most = self._put(arith.MinSIOp, least, each), self._put(arith.MaxSIOp, most, each)
        return least, most


Rule: TypeAlias = Callable[[_Intervals, Value, list[Bounds]], "Bounds | None"]


def _both(arguments: list[Bounds | None]) -> tuple[Bounds, Bounds]:
    first, second = arguments
    assert first is not None and second is not None
    return first, second


def _fitting(on: _Intervals, value: Value, bounds: Bounds) -> Bounds:
    """Bounds of what is computed: the mask's own integers must hold them, and those of int64 leave room for a sum."""
    return on._within(bounds, TERMS if value.dtype is int64 else _range(value.dtype))


def _range(dtype: DType) -> tuple[int, int]:
    """The least and the largest integer of a dtype."""
    known = torch.iinfo(dtype.torch)
    return known.min, known.max


def _terms(on: _Intervals, value: Value, bounds: list[Bounds]) -> list[Bounds]:
    """The bounds of what is added up: whether int64 wraps around shows in the sum only where they are not too large."""
    for argument, each in zip(value.arguments, bounds, strict=True):
        if value.dtype is int64 and argument.operation != "count":
            on._within(each, TERMS)
    return bounds


def _sum(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    (a, b), (c, d) = _terms(on, value, bounds)
    return _fitting(on, value, (on._put(arith.AddiOp, a, c), on._put(arith.AddiOp, b, d)))


def _difference(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    (a, b), (c, d) = _terms(on, value, bounds)
    return _fitting(on, value, (on._put(arith.SubiOp, a, d), on._put(arith.SubiOp, b, c)))


def _product(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    a, b = (on._within(each, FACTORS) for each in bounds)
    corners = [on._put(arith.MuliOp, x, y) for x in a for y in b]
    return _fitting(on, value, on._ordered(corners))


def _negative(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    zero = on._number(0)
    ((a, b),) = _terms(on, value, bounds)
    return _fitting(on, value, (on._put(arith.SubiOp, zero, b), on._put(arith.SubiOp, zero, a)))


def _size(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    ((a, b),) = _terms(on, value, bounds)
    turned = on._put(arith.SubiOp, on._number(0), b)
    least = on._put(arith.MaxSIOp, on._put(arith.MaxSIOp, a, turned), on._number(0))
    most = on._put(arith.MaxSIOp, on._put(arith.SubiOp, on._number(0), a), b)
    return _fitting(on, value, (least, most))


def _each(make: Callable[..., Operation]) -> Rule:
    """Of what grows with both operands."""

    def rule(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
        (a, b), (c, d) = bounds
        return on._put(make, a, c), on._put(make, b, d)

    return rule


def _chosen(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    _, a, b = bounds
    if value.dtype is bool_:
        return on._put(arith.AndIOp, a[0], b[0]), on._put(arith.OrIOp, a[1], b[1])
    return on._ordered([*a, *b])


def _inverse(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds:
    ((certain, possible),) = bounds
    return on._not(possible), on._not(certain)


def _cast(on: _Intervals, value: Value, bounds: list[Bounds]) -> Bounds | None:
    (source,), (own,) = value.arguments, bounds
    if source.dtype is bool_:
        return (on.builder.cast(own[0], int64), on.builder.cast(own[1], int64)) if value.dtype is not bool_ else own
    if value.dtype is bool_:
        return on._anything()
    (least, most), (lowest, highest) = _range(source.dtype), _range(value.dtype)
    return own if lowest <= least and most <= highest else on._within(own, (lowest, highest))


_ARITHMETIC: Final[Mapping[str, Rule]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "neg": _negative,
    "abs": _size,
    "maximum": _each(arith.MaxSIOp),
    "minimum": _each(arith.MinSIOp),
    "select": _chosen,
    "cast": _cast,
}
_LOGIC: Final[Mapping[str, Rule]] = {
    "and": _each(arith.AndIOp),
    "or": _each(arith.OrIOp),
    "not": _inverse,
    "select": _chosen,
    "cast": _cast,
}
