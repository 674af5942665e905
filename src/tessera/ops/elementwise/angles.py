"""Angles, hyperbolic functions and their inverses, and logarithms and powers of other bases.

`tan asin acos atan atan2 sinh cosh asinh acosh atanh log2 log10 exp2 erfinv hypot`. All are computed in fp64
and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch

from tessera.dtypes import fp64
from tessera.ops.algebra import call
from tessera.ops.elementwise.dtypes import to_float
from tessera.ops.elementwise.row import elementwise
from tessera.ops.emitter import Emitter, V

N: TypeAlias = Any
"""A node."""

HALF_PI_REST: Final = 6.123233995736765886130e-17
"""pi / 2 less the double next to it."""
ATAN_BREAK: Final = 0.66
ATAN_P: Final = (
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
    -1.228866684490136173410e2, -6.485021904942025371773e1,
)  # fmt: skip
ATAN_Q: Final = (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
    4.853903996359136964868e2, 1.945506571482613964425e2,
)  # fmt: skip
"""Moshier, Cephes Mathematical Library 2.8, atan.c: atan(x) = x + x z P(z) / Q(z), z = x * x, for |x| <= 0.66."""
LARGE: Final = 1e8
"""From here on x * x + 1 is x * x in fp64."""


def _widely(body: Callable[..., Any]) -> Callable[[Emitter[V], V], V]:
    """The body over an operand in fp64, rounded to the operand's dtype."""

    def wide(e: Emitter[V], x: V) -> V:
        result: V = e.cast(body(e, e.cast(x, fp64)), x.dtype)
        return result

    return wide


def _widely_of_two(body: Callable[..., Any]) -> Callable[[Emitter[V], V, V], V]:
    """As `_widely`, of two operands."""

    def wide(e: Emitter[V], a: V, b: V) -> V:
        result: V = e.cast(body(e, e.cast(a, fp64), e.cast(b, fp64)), a.dtype)
        return result

    return wide


def _polynomial(e: Emitter[V], z: V, coefficients: tuple[float, ...]) -> V:
    """By Horner's rule, the highest power first."""
    value = e.constant(coefficients[0], z)
    for coefficient in coefficients[1:]:
        value = e.add(e.mul(value, z), e.constant(coefficient, z))
    return value


def _is_negative(e: Emitter[V], x: V) -> V:
    """Whether the sign is minus, that of zero too."""
    zero, one = e.constant(0.0, x), e.constant(1.0, x)
    is_zero = e.compare("eq", x, zero)
    return e.compare("lt", e.select(is_zero, e.div(one, x), x), zero)


def _with_sign(e: Emitter[V], size: V, like: V) -> V:
    return e.select(_is_negative(e, like), e.neg(size), size)


def _atan_within_one(e: Emitter[V], x: V) -> V:
    """The arc tangent of 0 to 1."""
    one = e.constant(1.0, x)
    far = e.compare("gt", x, e.constant(ATAN_BREAK, x))
    reduced = e.select(far, e.div(e.sub(x, one), e.add(x, one)), x)
    z = e.mul(reduced, reduced)
    ratio = e.div(e.mul(z, _polynomial(e, z, ATAN_P)), _polynomial(e, z, ATAN_Q))
    angle = e.add(e.mul(reduced, ratio), reduced)
    turned = e.add(e.constant(math.pi / 4, x), e.add(angle, e.constant(HALF_PI_REST / 2, x)))
    return e.select(far, turned, angle)


def _angle(e: Emitter[V], y: V, x: V) -> V:
    """The angle of the point (x, y), -pi to pi, with C99's angles of zeros and infinities."""
    zero, one = e.constant(0.0, x), e.constant(1.0, x)
    width, height = e.abs(x), e.abs(y)
    larger, smaller = e.maximum(width, height), e.minimum(width, height)
    ratio = e.div(smaller, e.select(e.compare("eq", larger, zero), one, larger))
    ratio = e.select(e.compare("eq", smaller, e.constant(math.inf, x)), one, ratio)
    angle = _atan_within_one(e, ratio)
    rest = e.constant(HALF_PI_REST, x)
    steep = e.add(e.sub(e.constant(math.pi / 2, x), angle), rest)
    angle = e.select(e.compare("gt", height, width), steep, angle)
    behind = e.add(e.sub(e.constant(math.pi, x), angle), e.add(rest, rest))
    return _with_sign(e, e.select(_is_negative(e, x), behind, angle), y)


def _atan(e: Emitter[V], x: V) -> V:
    return _angle(e, x, e.constant(1.0, x))


def _cosine_of(e: Emitter[V], sine: V) -> V:
    """The root of 1 less the square, without its cancellation."""
    one = e.constant(1.0, sine)
    return e.sqrt(e.mul(e.sub(one, sine), e.add(one, sine)))


def _asin(e: Emitter[V], x: V) -> V:
    return _angle(e, x, _cosine_of(e, x))


def _acos(e: Emitter[V], x: V) -> V:
    return _angle(e, _cosine_of(e, x), x)


def _halved_exponential(e: Emitter[V], x: V) -> V:
    """exp(x) / 2, which overflows only where it is too large itself."""
    half = e.constant(0.5, x)
    root = e.exp(e.mul(half, x))
    return e.mul(e.mul(half, root), root)


def _sinh(e: Emitter[V], x: V) -> V:
    size = e.abs(x)
    grown = e.expm1(size)
    near = e.mul(e.constant(0.5, x), e.add(grown, e.div(grown, e.add(grown, e.constant(1.0, x)))))
    is_near = e.compare("lt", size, e.constant(20.0, x))
    return _with_sign(e, e.select(is_near, near, _halved_exponential(e, size)), x)


def _cosh(e: Emitter[V], x: V) -> V:
    size = e.abs(x)
    return e.add(_halved_exponential(e, size), e.mul(e.constant(0.5, x), e.exp(e.neg(size))))


def _asinh(e: Emitter[V], x: V) -> V:
    """log(|x| + sqrt(x * x + 1)) with the sign of x, by log1p, which keeps small ones."""
    one, size = e.constant(1.0, x), e.abs(x)
    square = e.mul(size, size)
    near = e.log1p(e.add(size, e.div(square, e.add(one, e.sqrt(e.add(square, one))))))
    far = e.add(e.log(size), e.constant(math.log(2.0), x))
    return _with_sign(e, e.select(e.compare("gt", size, e.constant(LARGE, x)), far, near), x)


def _acosh(e: Emitter[V], x: V) -> V:
    """log(x + sqrt(x * x - 1)), by log1p of what is beyond 1; NaN below 1."""
    beyond = e.sub(x, e.constant(1.0, x))
    root = e.sqrt(e.add(e.add(beyond, beyond), e.mul(beyond, beyond)))
    far = e.add(e.log(x), e.constant(math.log(2.0), x))
    inside = e.select(e.compare("lt", beyond, e.constant(0.0, x)), e.constant(math.nan, x), e.add(beyond, root))
    return e.select(e.compare("gt", x, e.constant(LARGE, x)), far, e.log1p(inside))


def _atanh(e: Emitter[V], x: V) -> V:
    size = e.abs(x)
    grown = e.div(e.add(size, size), e.sub(e.constant(1.0, x), size))
    return _with_sign(e, e.mul(e.constant(0.5, x), e.log1p(grown)), x)


def _scaled_log(base: float) -> Callable[[Emitter[V], V], V]:
    def body(e: Emitter[V], x: V) -> V:
        return e.mul(e.log(x), e.constant(1.0 / math.log(base), x))

    return body


def _exp2(e: Emitter[V], x: V) -> V:
    """By the whole and the broken part: powers of two are exact. The whole part is one whose power is a double."""
    whole = e.maximum(e.minimum(e.round(x), e.constant(1023.0, x)), e.constant(-1074.0, x))
    broken = e.exp(e.mul(e.sub(x, whole), e.constant(math.log(2.0), x)))
    is_finite = e.compare("eq", e.sub(x, x), e.constant(0.0, x))
    return e.select(is_finite, e.mul(broken, e.pow(e.constant(2.0, x), whole)), e.exp(x))


def _hypot(e: Emitter[V], a: V, b: V) -> V:
    """The root of the sum of squares of both over the larger, times that; infinite if either is."""
    infinite = e.constant(math.inf, a)
    a, b = e.abs(a), e.abs(b)
    larger, smaller = e.maximum(a, b), e.minimum(a, b)
    ratio = e.div(smaller, e.select(e.compare("eq", larger, e.constant(0.0, a)), e.constant(1.0, a), larger))
    length = e.mul(larger, e.sqrt(e.add(e.constant(1.0, a), e.mul(ratio, ratio))))
    either = e.logical_or(e.compare("eq", a, infinite), e.compare("eq", b, infinite))
    return e.select(either, infinite, length)


def _length(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.hypot(*(x if x.is_floating_point() else x.double() for x in (a, b)))  # torch takes no integers


def _hypot_gradient(g: N, a: N, b: N, out: N) -> tuple[N, N]:
    return g * (a / out), g * (b / out)


ERFINV_INNER: Final = (-0.140543331, 0.914624893, -1.645349621, 0.886226899)
ERFINV_INNER_BELOW: Final = (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0)
ERFINV_OUTER: Final = (1.641345311, 3.429567803, -1.624906493, -1.970840454)
ERFINV_OUTER_BELOW: Final = (1.637067800, 3.543889200, 1.0)
ERFINV_BREAK: Final = 0.7
ERF_SLOPE: Final = 2.0 / math.sqrt(math.pi)
"""erfinv(x) ~ x P(x x) / Q(x x) to 0.7, and P(z) / Q(z) of z = sqrt(-log((1 - |x|) / 2)) beyond; two steps of Newton's
method make 16 digits of their 6. The coefficients are those of ATen/native/Math.h.
"""


def _erfinv(e: Emitter[V], x: V) -> V:
    size, one, square = e.abs(x), e.constant(1.0, x), e.mul(x, x)
    inner = e.div(e.mul(size, _polynomial(e, square, ERFINV_INNER)), _polynomial(e, square, ERFINV_INNER_BELOW))
    z = e.sqrt(e.neg(e.log(e.mul(e.sub(one, size), e.constant(0.5, x)))))
    outer = e.div(_polynomial(e, z, ERFINV_OUTER), _polynomial(e, z, ERFINV_OUTER_BELOW))
    y = e.select(e.compare("le", size, e.constant(ERFINV_BREAK, x)), inner, outer)
    for _ in range(2):
        slope = e.mul(e.exp(e.neg(e.mul(y, y))), e.constant(ERF_SLOPE, x))
        y = e.sub(y, e.div(e.sub(e.erf(y), size), slope))
    at_end = e.select(e.compare("eq", size, one), e.constant(math.inf, x), e.constant(math.nan, x))
    return _with_sign(e, e.select(e.compare("lt", size, one), y, at_end), x)


def _angle_gradient(g: N, y: N, x: N, out: N) -> tuple[N, N]:
    """d atan2(y, x) = (x dy - y dx) / (x * x + y * y)."""
    over = g / (x * x + y * y)
    return over * x, -(over * y)


def _root_of(x: N) -> N:
    return call("sqrt", x)


ROWS = (
    elementwise(
        "tan", _widely(lambda e, x: e.div(e.sin(x), e.cos(x))), lambda g, x, out: g * (out * out + 1), torch.tan,
        to_float,
    ),
    elementwise(
        "asin", _widely(_asin), lambda g, x, out: g / _root_of((1 - x) * (1 + x)), torch.asin, to_float,
    ),
    elementwise(
        "acos", _widely(_acos), lambda g, x, out: -(g / _root_of((1 - x) * (1 + x))), torch.acos, to_float,
    ),
    elementwise(
        "atan", _widely(_atan), lambda g, x, out: g / (x * x + 1), torch.atan, to_float,
    ),
    elementwise(
        "atan2", _widely_of_two(_angle), _angle_gradient, torch.atan2, to_float,
    ),
    elementwise(
        "sinh", _widely(_sinh), lambda g, x, out: g * call("cosh", x), torch.sinh, to_float,
    ),
    elementwise(
        "cosh", _widely(_cosh), lambda g, x, out: g * call("sinh", x), torch.cosh, to_float,
    ),
    elementwise(
        "asinh", _widely(_asinh), lambda g, x, out: g / call("hypot", x, 1.0), torch.asinh, to_float,
    ),
    elementwise(
        "acosh", _widely(_acosh), lambda g, x, out: g / (_root_of(x - 1) * _root_of(x + 1)), torch.acosh, to_float,
        positive=True,
    ),
    elementwise(
        "atanh", _widely(_atanh), lambda g, x, out: g / ((1 - x) * (1 + x)), torch.atanh, to_float,
    ),
    elementwise(
        "log2", _widely(_scaled_log(2.0)), lambda g, x, out: g / (x * math.log(2.0)), torch.log2, to_float,
        positive=True,
    ),
    elementwise(
        "log10", _widely(_scaled_log(10.0)), lambda g, x, out: g / (x * math.log(10.0)), torch.log10, to_float,
        positive=True,
    ),
    elementwise(
        "exp2", _widely(_exp2), lambda g, x, out: g * (out * math.log(2.0)), torch.exp2, to_float,
    ),
    elementwise(
        "erfinv", _widely(_erfinv), lambda g, x, out: g * (call("exp", out * out) * (1.0 / ERF_SLOPE)), torch.erfinv,
        to_float,
    ),
    elementwise(
        "hypot", _widely_of_two(_hypot), _hypot_gradient, _length, to_float,
    ),
)  # fmt: skip
"""One row an operator: name, body, gradient, reference, dtypes of operands, and what else is special."""
