"""Tile bodies of the elementwise operators; see `emitter`. Operands of one body have the same dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tessera.dtypes import DType, bool_, int32
from tessera.ops.emitter import Comparison, Emitter, V

SQRT_HALF: Final = math.sqrt(0.5)
GELU_SCALE: Final = math.sqrt(2.0 / math.pi)
GELU_CUBIC: Final = 0.044715
"""Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016): gelu(x) ~ x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715
x^3))).
"""


def add(e: Emitter[V], a: V, b: V) -> V:
    """Of bools, their union."""
    return e.logical_or(a, b) if a.dtype is bool_ else e.add(a, b)


def sub(e: Emitter[V], a: V, b: V) -> V:
    """a - b."""
    return e.sub(a, b)


def mul(e: Emitter[V], a: V, b: V) -> V:
    """Of bools, their intersection."""
    return e.logical_and(a, b) if a.dtype is bool_ else e.mul(a, b)


def div(e: Emitter[V], a: V, b: V) -> V:
    """a / b."""
    return e.div(a, b)


def pow(e: Emitter[V], a: V, b: V) -> V:
    """a ** b."""
    return e.pow(a, b)


def maximum(e: Emitter[V], a: V, b: V) -> V:
    """The larger; NaN if either is."""
    return e.logical_or(a, b) if a.dtype is bool_ else e.maximum(a, b)


def minimum(e: Emitter[V], a: V, b: V) -> V:
    """The smaller; NaN if either is."""
    return e.logical_and(a, b) if a.dtype is bool_ else e.minimum(a, b)


def neg(e: Emitter[V], x: V) -> V:
    """-x."""
    return e.neg(x)


def abs(e: Emitter[V], x: V) -> V:
    """|x|."""
    return e.abs(x)


def relu(e: Emitter[V], x: V) -> V:
    """max(x, 0)."""
    return e.maximum(x, e.constant(0, x))


def clamp(e: Emitter[V], x: V, *, minimum: float | None, maximum: float | None) -> V:
    """The upper bound is applied last: it wins where the bounds cross, as in torch."""
    raised = x if minimum is None else e.maximum(x, e.constant(minimum, x))
    return raised if maximum is None else e.minimum(raised, e.constant(maximum, x))


def exp(e: Emitter[V], x: V) -> V:
    """e ** x."""
    return e.exp(x)


def log(e: Emitter[V], x: V) -> V:
    """ln x."""
    return e.log(x)


def expm1(e: Emitter[V], x: V) -> V:
    """e ** x - 1."""
    return e.expm1(x)


def log1p(e: Emitter[V], x: V) -> V:
    """ln(1 + x)."""
    return e.log1p(x)


def sin(e: Emitter[V], x: V) -> V:
    """sin x."""
    return e.sin(x)


def cos(e: Emitter[V], x: V) -> V:
    """cos x."""
    return e.cos(x)


def floor(e: Emitter[V], x: V) -> V:
    """The largest integer not above x; integers are their own."""
    return e.floor(x) if x.dtype.kind == "float" else x


def ceil(e: Emitter[V], x: V) -> V:
    """The smallest integer not below x; integers are their own."""
    return e.ceil(x) if x.dtype.kind == "float" else x


def round(e: Emitter[V], x: V) -> V:
    """The nearest integer, the even one of two; integers are their own."""
    return e.round(x) if x.dtype.kind == "float" else x


def sqrt(e: Emitter[V], x: V) -> V:
    """The square root."""
    return e.sqrt(x)


def rsqrt(e: Emitter[V], x: V) -> V:
    """1 / sqrt(x)."""
    return e.rsqrt(x)


def tanh(e: Emitter[V], x: V) -> V:
    """tanh x."""
    return e.tanh(x)


def erf(e: Emitter[V], x: V) -> V:
    """erf x."""
    return e.erf(x)


def sigmoid(e: Emitter[V], x: V) -> V:
    """1 / (1 + exp(-x)): exp overflows to infinity, whose inverse is the right 0."""
    one = e.constant(1.0, x)
    return e.div(one, e.add(one, e.exp(e.neg(x), approximate=True)))


def silu(e: Emitter[V], x: V) -> V:
    """x / (1 + exp(-x))."""
    return e.div(x, e.add(e.constant(1.0, x), e.exp(e.neg(x), approximate=True)))


def gelu(e: Emitter[V], x: V, *, approximate: str) -> V:
    """x Phi(x), by erf, or by tanh where `approximate` says so."""
    half = e.mul(e.constant(0.5, x), x)
    if approximate == "tanh":
        cubic = e.mul(e.mul(x, x), e.mul(e.constant(GELU_CUBIC, x), x))
        inner = e.tanh(e.mul(e.constant(GELU_SCALE, x), e.add(x, cubic)), approximate=True)
    else:
        inner = e.erf(e.mul(x, e.constant(SQRT_HALF, x)), approximate=True)
    return e.mul(half, e.add(inner, e.constant(1.0, x)))


def comparison(kind: Comparison) -> Callable[..., object]:
    """The body of a comparison."""

    def body(e: Emitter[V], a: V, b: V) -> V:
        # As i1, true would be -1 to a signed comparison.
        if a.dtype is bool_:
            a, b = e.cast(a, int32), e.cast(b, int32)
        return e.compare(kind, a, b)

    return body


def logical_and(e: Emitter[V], a: V, b: V) -> V:
    """Both."""
    return e.logical_and(a, b)


def logical_or(e: Emitter[V], a: V, b: V) -> V:
    """Either."""
    return e.logical_or(a, b)


def logical_not(e: Emitter[V], x: V) -> V:
    """The opposite."""
    return e.logical_not(x)


def where(e: Emitter[V], condition: V, a: V, b: V) -> V:
    """a where the condition holds, else b."""
    return e.select(condition, a, b)


def cast(e: Emitter[V], x: V, *, dtype: DType) -> V:
    """x in another dtype."""
    return e.cast(x, dtype)
