"""What the body of an operator says about parts: whether results of parts of a reduced axis are reduced to the result,
and whether a sum of operands gives the sum of results.

A body is run once with values that only know what became of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from tessera.dtypes import DType, accumulator, bool_, int64
from tessera.ir.anchors.anchor import ADD
from tessera.ops.record import Operator

Kind: TypeAlias = Literal["literal", "given", "linear", "other"]
"""A literal; a value that does not depend on the operands in question; a linear function of them; or another one."""


class _Value:
    """An abstract value; `reduced` says that a reduction made it."""

    __slots__ = ("dtype", "kind", "number", "reduced")

    def __init__(self, dtype: DType, kind: Kind, number: float = 0, reduced: bool = False) -> None:
        self.dtype = dtype
        self.kind = kind
        self.number = number
        self.reduced = reduced


class _Abstract:
    """An emitter whose values know whether they are linear in some operands."""

    def constant(self, value: float | int | bool, like: _Value | DType, /) -> _Value:
        return _Value(like.dtype if isinstance(like, _Value) else like, "literal", value)

    def add(self, a: _Value, b: _Value, /) -> _Value:
        both = _is_linear(a) and _is_linear(b)
        return _Value(a.dtype, "linear" if both and "linear" in (a.kind, b.kind) else _plain(a, b))

    sub = add

    def neg(self, a: _Value, /) -> _Value:
        return _Value(a.dtype, a.kind if a.kind == "linear" else _plain(a))

    def mul(self, a: _Value, b: _Value, /) -> _Value:
        for value, factor in ((a, b), (b, a)):
            if value.kind == "linear" and (factor.kind == "given" or _scales_exactly(factor)):
                return _Value(a.dtype, "linear")
        return _Value(a.dtype, _plain(a, b))

    def contract(self, a: _Value, b: _Value, /) -> _Value:
        kinds = {a.kind, b.kind}
        kind: Kind = "linear" if kinds == {"linear", "given"} else _plain(a, b)
        return _Value(accumulator(a.dtype), kind, reduced=True)

    convolve = contract

    def reduce(self, kind: str, a: _Value, /) -> _Value:
        return _Value(a.dtype, "linear" if kind == ADD and a.kind == "linear" else _plain(a), reduced=True)

    def select(self, condition: _Value, a: _Value, b: _Value, /) -> _Value:
        both = condition.kind == "given" and _is_linear(a) and _is_linear(b)
        return _Value(a.dtype, "linear" if both and "linear" in (a.kind, b.kind) else _plain(condition, a, b))

    def cast(self, a: _Value, dtype: DType, /) -> _Value:
        wider = a.dtype is dtype or (a.dtype.kind == dtype.kind == "float" and a.dtype.itemsize < dtype.itemsize)
        return _Value(dtype, "linear" if wider and a.kind == "linear" else _plain(a), reduced=a.reduced and wider)

    def compare(self, kind: str, a: _Value, b: _Value, /) -> _Value:
        return _Value(bool_, _plain(a, b))

    def extent(self, a: _Value, /) -> _Value:
        return _Value(a.dtype, "other")

    def position(self) -> _Value:
        return _Value(int64, "other")

    def attend(
        self,
        q: _Value,
        k: _Value,
        v: _Value,
        scale: _Value,
        mask: _Value | None,
        causal: bool,
        scored: Callable[[_Value], _Value] | None = None,
        /,
    ) -> _Value:
        score = _Value(accumulator(q.dtype), _plain(q, k, scale))
        values = [score if scored is None else scored(score), *([] if mask is None else [mask])]
        kind: Kind = "linear" if v.kind == "linear" and _plain(*values) == "given" else _plain(*values, v)
        return _Value(accumulator(q.dtype), kind)

    def attend_pages(
        self,
        q: _Value,
        k: _Value,
        v: _Value,
        scale: _Value,
        table: _Value,
        lengths: _Value,
        causal: bool,
        window: int,
        scored: Callable[[_Value], _Value] | None = None,
        /,
    ) -> _Value:
        places = _Value(accumulator(q.dtype), _plain(table, lengths))
        return self.attend(q, k, v, scale, places, causal, scored)

    def attend_logarithms(
        self,
        q: _Value,
        k: _Value,
        v: _Value,
        scale: _Value,
        mask: _Value | None,
        causal: bool,
        scored: Callable[[_Value], _Value] | None = None,
        /,
    ) -> _Value:
        score = _Value(accumulator(q.dtype), _plain(q, k, scale))
        values = [score if scored is None else scored(score), *([] if mask is None else [mask])]
        return _Value(accumulator(q.dtype), _plain(*values))

    def attend_back(
        self,
        of: str | tuple[int, str],
        operands: tuple[_Value, ...],
        causal: bool,
        scored: Callable[[_Value], _Value] | None,
        derived: Callable[[_Value, _Value], _Value] | None,
        beside: Callable[[_Value, _Value], _Value] | None,
        /,
    ) -> _Value:
        """Of values it is linear in the cotangent, of all else in that and its mean together, where derivatives are."""
        q, k, v, g, logarithms, mean, scale = operands
        dtype = accumulator(q.dtype)
        score = _Value(dtype, _plain(q, k, scale))
        changed = score if scored is None else scored(score)
        parts = (g,) if of == "v" else (g, mean)
        linear = all(each.kind == "linear" for each in parts) and (of == "v" or _plain(v) == "given")
        linear = linear and _plain(changed, logarithms) == "given"
        found = _Value(dtype, "linear" if linear else _plain(changed, v, g, logarithms, mean))
        derivative = None if of == "v" else derived if isinstance(of, str) else beside
        found = found if derivative is None else derivative(score, found)
        others = (k,) if of == "q" else (q,) if of == "k" else ()
        is_linear = found.kind == "linear" and _plain(*others) == "given"
        return _Value(dtype, "linear" if is_linear else _plain(found, *others))

    def __getattr__(self, name: str) -> Any:
        """All other operations: functions of their operands that are not linear."""
        return _other


def _other(*values: _Value, **options: object) -> _Value:
    return _Value(values[0].dtype, _plain(*values))


def _plain(*values: _Value) -> Kind:
    """Of a function that is not linear: it depends on the operands in question if one of its own does."""
    return "given" if all(value.kind in ("literal", "given") for value in values) else "other"


def _is_linear(value: _Value) -> bool:
    return value.kind == "linear" or (value.kind == "literal" and value.number == 0)


def _scales_exactly(value: _Value) -> bool:
    """Whether a literal is a power of two, by which the parts of a sum may be multiplied without rounding."""
    return value.kind == "literal" and value.number != 0 and math.frexp(abs(value.number))[0] == 0.5


def _run(
    operator: Operator, attributes: Sequence[Any], dtypes: Sequence[DType], kinds: Sequence[Kind]
) -> _Value | None:
    values = [_Value(dtype, kind) for dtype, kind in zip(dtypes, kinds, strict=True)]
    named = dict(zip(operator.attribute_names, attributes, strict=True))
    result = operator.body(_Abstract(), *values, **named)
    return result if isinstance(result, _Value) else None


@lru_cache(maxsize=1 << 12)
def combines(operator: Operator, attributes: tuple[Any, ...], dtypes: tuple[DType, ...]) -> bool:
    """Whether the results of parts of an axis that is reduced, reduced again, are the operator's result: the last thing
    that its body does is to reduce. Of what a library computes there is no body, and what its anchor reduces, it does.
    """
    if operator.kind.is_call:
        return True
    kinds: list[Kind] = ["given"] * len(dtypes)
    made = _run(operator, attributes, dtypes, kinds)
    return made is not None and made.reduced


@lru_cache(maxsize=1 << 12)
def passes_sums(
    operator: Operator, attributes: tuple[Any, ...], dtypes: tuple[DType, ...], pending: frozenset[int]
) -> bool:
    """Whether the operator over parts of these operands gives parts of its result: it is linear in them together. Of
    what a library computes nothing says so.
    """
    if operator.kind.is_call:
        return False
    made = _run(operator, attributes, dtypes, [_kind_of(place, pending) for place in range(len(dtypes))])
    return made is not None and made.kind == "linear"


def _kind_of(place: int, pending: Collection[int]) -> Kind:
    return "linear" if place in pending else "given"
