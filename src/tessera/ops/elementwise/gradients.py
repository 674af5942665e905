"""Gradient rules of the elementwise operators: `(cotangent, operands, result, **attributes)` to a cotangent per
operand.

Rules build nodes, so that gradients are rewritten and fused like all else. A cotangent has its operand's shape and
dtype. Ties and corners follow torch: both sides of an equal maximum get half, abs has derivative 0 at 0.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

from tessera.dtypes import DType
from tessera.ops.algebra import call, literal, sum_to
from tessera.ops.elementwise.bodies import GELU_CUBIC, GELU_SCALE, SQRT_HALF

N: TypeAlias = Any
Cotangents: TypeAlias = tuple[Any, ...]

ERF_SCALE: Final = 2.0 / math.sqrt(math.pi)
NORMAL_SCALE: Final = 1.0 / math.sqrt(2.0 * math.pi)
"""Height of the standard normal density."""


def _both(operands: tuple[N, N], first: N, second: N) -> Cotangents:
    a, b = operands
    return sum_to(first, a.shape), sum_to(second, b.shape)


def none(g: N, operands: tuple[N, ...], out: N) -> Cotangents:
    """Of operators whose results do not vary continuously."""
    return (None,) * len(operands)


def add(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """d(a + b) = da + db."""
    return _both(operands, g, g)


def sub(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """d(a - b) = da - db."""
    return _both(operands, g, -g)


def mul(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """d(ab) = b da + a db."""
    a, b = operands
    return _both(operands, g * b, g * a)


def div(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """d(a / b) = da / b - (a / b) db / b."""
    _, b = operands
    return _both(operands, g / b, -g * out / b)


def pow(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """d(a ** b) = b a ** (b - 1) da + a ** b ln(a) db; 0 where b, or a under a positive power, is 0."""
    a, b = operands
    zero = literal(0, out.dtype)
    base = call("where", b == 0, zero, g * (b * call("pow", a, b - 1)))
    exponent = call("where", (a == 0) & (b >= 0), zero, g * (out * call("log", a)))
    return _both(operands, base, exponent)


def maximum(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """To the larger operand."""
    a, b = operands
    return _extremum(g, operands, a > b, b > a)


def minimum(g: N, operands: tuple[N, N], out: N) -> Cotangents:
    """To the smaller operand."""
    a, b = operands
    return _extremum(g, operands, a < b, b < a)


def _extremum(g: N, operands: tuple[N, N], first_wins: N, second_wins: N) -> Cotangents:
    zero = literal(0, g.dtype)
    half = g * 0.5
    first = call("where", first_wins, g, call("where", second_wins, zero, half))
    second = call("where", second_wins, g, call("where", first_wins, zero, half))
    return _both(operands, first, second)


def neg(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d(-x) = -dx."""
    return (-g,)


def abs(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d|x| = sign(x) dx."""
    (x,) = operands
    return (call("where", x > 0, g, call("where", x < 0, -g, literal(0, g.dtype))),)


def relu(g: N, operands: tuple[N], out: N) -> Cotangents:
    """dx where x > 0."""
    return (call("where", out > 0, g, literal(0, g.dtype)),)


def clamp(g: N, operands: tuple[N], out: N, *, minimum: float | None, maximum: float | None) -> Cotangents:
    """dx where x lies within the bounds, which count as within."""
    (x,) = operands
    zero = literal(0, g.dtype)
    if minimum is not None:
        g = call("where", x >= minimum, g, zero)
    if maximum is not None:
        g = call("where", x <= maximum, g, zero)
    return (g,)


def exp(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d exp(x) = exp(x) dx."""
    return (g * out,)


def log(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d ln(x) = dx / x."""
    return (g / operands[0],)


def expm1(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d(exp(x) - 1) = exp(x) dx."""
    return (g * (out + 1),)


def log1p(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d ln(1 + x) = dx / (1 + x)."""
    return (g / (operands[0] + 1),)


def sin(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d sin(x) = cos(x) dx."""
    return (g * call("cos", operands[0]),)


def cos(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d cos(x) = -sin(x) dx."""
    return (-(g * call("sin", operands[0])),)


def sqrt(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d sqrt(x) = dx / (2 sqrt(x))."""
    return (g * 0.5 / out,)


def rsqrt(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d x^(-1/2) = -1/2 x^(-3/2) dx."""
    return (g * -0.5 * out * out * out,)


def tanh(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d tanh(x) = (1 - tanh(x)^2) dx."""
    return (g * (1 - out * out),)


def erf(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d erf(x) = 2 / sqrt(pi) exp(-x^2) dx."""
    (x,) = operands
    return (g * (call("exp", -(x * x)) * ERF_SCALE),)


def sigmoid(g: N, operands: tuple[N], out: N) -> Cotangents:
    """ds = s (1 - s) dx."""
    return (g * (out * (1 - out)),)


def silu(g: N, operands: tuple[N], out: N) -> Cotangents:
    """d(x s) = s (1 + x (1 - s)) dx, with s = sigmoid(x)."""
    (x,) = operands
    s = call("sigmoid", x)
    return (g * (s * (1 + x * (1 - s))),)


def gelu(g: N, operands: tuple[N], out: N, *, approximate: str) -> Cotangents:
    """d(x Phi(x)) = (Phi(x) + x phi(x)) dx; the tanh form is differentiated as it stands."""
    (x,) = operands
    if approximate == "tanh":
        t = call("tanh", GELU_SCALE * (x + GELU_CUBIC * x * x * x))
        slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x)
        return (g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope),)
    distribution = 0.5 * (1 + call("erf", x * SQRT_HALF))
    density = NORMAL_SCALE * call("exp", -0.5 * (x * x))
    return (g * (distribution + x * density),)


def where(g: N, operands: tuple[N, N, N], out: N) -> Cotangents:
    """To the branch that was taken."""
    condition, a, b = operands
    zero = literal(0, g.dtype)
    return (
        None,
        sum_to(call("where", condition, g, zero), a.shape),
        sum_to(call("where", condition, zero, g), b.shape),
    )


def cast(g: N, operands: tuple[N], out: N, *, dtype: DType) -> Cotangents:
    """Back to the operand's dtype; nothing through integers and bools."""
    (x,) = operands
    if x.dtype.kind != "float" or dtype.kind != "float":
        return (None,)
    return (call("cast", g, dtype=x.dtype),)
