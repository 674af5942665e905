"""Arithmetic of several operands, element by element. All are maps, which fuse with their neighbours."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, call, node, on
from tessera.doors.elementwise.functions import signbit
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_pair
from tessera.ops import algebra
from tessera.ops.elementwise import calls, division
from tessera.runtime.streams.stream import Stream


def add(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a + b; of bools, their union."""
    return binary("add", a, b, stream)


def sub(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a - b."""
    return binary("sub", a, b, stream)


def mul(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a * b; of bools, their intersection."""
    return binary("mul", a, b, stream)


def div(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a / b; integers give floats."""
    return binary("div", a, b, stream)


def floor_divide(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a // b, rounded down. Integers are not divided by 0: DivisionByZeroError (E_ZERO_DIVISION)."""
    return on(division.floor_divide(a, b), stream)


def remainder(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a % b, of the divisor's sign, as in Python. Integers are not divided by 0: DivisionByZeroError
    (E_ZERO_DIVISION).
    """
    return on(division.remainder(a, b), stream)


def fmod(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """What is left of a / b rounded toward zero, of the dividend's sign, as in C. Integers are not divided by 0:
    DivisionByZeroError (E_ZERO_DIVISION).
    """
    return on(division.fmod(a, b), stream)


def pow(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a ** b. Integers refuse a negative Python exponent."""
    first, _ = as_pair(a, b)
    return on(algebra.power(first, b), stream)


def maximum(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The larger; NaN if either is NaN."""
    return binary("maximum", a, b, stream)


def minimum(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The smaller; NaN if either is NaN."""
    return binary("minimum", a, b, stream)


def clamp(x: object, min: object = None, max: object = None, *, stream: Stream | None = None) -> Tensor:
    """x within bounds, numbers or tensors; at least one of them. The upper one wins where they cross."""
    if min is None and max is None:
        raise ArgumentError("clamp needs a bound", hints=["min=, max=, or both"])
    return on(calls.clamp(node(x), min, max), stream)


clip = clamp


def copysign(a: object, b: object, *, stream: Stream | None = None) -> Tensor:
    """The size of a with the sign of b, that of -0.0 too; integers give floats."""
    given, like = as_pair(a, b)
    size = call("abs", call("div", given, 1.0))  # in this order: the least integer has no absolute value of its dtype
    return on(call("where", signbit(like), -size, size), stream)


def logaddexp(a: object, b: object, *, stream: Stream | None = None) -> Tensor:
    """log(exp(a) + exp(b)) without overflow."""
    first, second = as_pair(a, b)
    larger, smaller = call("maximum", first, second), call("minimum", first, second)
    # Of equal infinities the difference is NaN.
    gap = call("where", call("eq", larger, smaller), 0.0, smaller - larger)
    return on(larger + call("log1p", call("exp", gap)), stream)


def where(condition: object, a: object, b: object, *, stream: Stream | None = None) -> Tensor:
    """a where the condition holds, else b; all three broadcast."""
    return on(call("where", condition, a, b), stream)
