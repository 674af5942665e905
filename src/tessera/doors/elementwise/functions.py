"""Functions of one variable, element by element. All are maps, which fuse with their neighbours."""

from __future__ import annotations

import math

import torch

from tessera.doors.calls.nodes import Number, call, node, on, unary
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.lazy.structures import building
from tessera.ops import OPERATORS
from tessera.ops.elementwise import division
from tessera.ops.layout.views import is_one_of, number
from tessera.runtime.streams.stream import Stream

_GELU = OPERATORS["gelu"]


def neg(x: object, stream: Stream | None = None) -> Tensor:
    """-x."""
    return unary("neg", x, stream)


def abs(x: object, stream: Stream | None = None) -> Tensor:
    """|x|."""
    return unary("abs", x, stream)


def exp(x: object, stream: Stream | None = None) -> Tensor:
    """e ** x."""
    return unary("exp", x, stream)


def log(x: object, stream: Stream | None = None) -> Tensor:
    """The natural logarithm."""
    return unary("log", x, stream)


def sqrt(x: object, stream: Stream | None = None) -> Tensor:
    """The square root."""
    return unary("sqrt", x, stream)


def rsqrt(x: object, stream: Stream | None = None) -> Tensor:
    """1 / sqrt(x)."""
    return unary("rsqrt", x, stream)


def tanh(x: object, stream: Stream | None = None) -> Tensor:
    """The hyperbolic tangent."""
    return unary("tanh", x, stream)


def sigmoid(x: object, stream: Stream | None = None) -> Tensor:
    """1 / (1 + exp(-x))."""
    return unary("sigmoid", x, stream)


def erf(x: object, stream: Stream | None = None) -> Tensor:
    """The error function."""
    return unary("erf", x, stream)


def relu(x: object, stream: Stream | None = None) -> Tensor:
    """max(x, 0)."""
    return unary("relu", x, stream)


def gelu(x: object, approximate: str = "none", *, stream: Stream | None = None) -> Tensor:
    """x Phi(x), with Phi the normal distribution; `approximate="tanh"` is its usual approximation."""
    if not is_one_of(approximate, ("none", "tanh")):
        raise ArgumentError(f"gelu: approximate={approximate!r}", hints=['"none" or "tanh"'])
    return on(building.unary(_GELU, (approximate,), node(x)), stream)


def silu(x: object, stream: Stream | None = None) -> Tensor:
    """x sigmoid(x)."""
    return unary("silu", x, stream)


def sin(x: object, stream: Stream | None = None) -> Tensor:
    """The sine of radians, reduced with all digits of pi that the argument needs."""
    return unary("sin", x, stream)


def cos(x: object, stream: Stream | None = None) -> Tensor:
    """The cosine of radians; as exact as `sin`."""
    return unary("cos", x, stream)


def expm1(x: object, stream: Stream | None = None) -> Tensor:
    """e ** x - 1, exact for small x too."""
    return unary("expm1", x, stream)


def log1p(x: object, stream: Stream | None = None) -> Tensor:
    """The natural logarithm of 1 + x, exact for small x too."""
    return unary("log1p", x, stream)


def floor(x: object, stream: Stream | None = None) -> Tensor:
    """The largest integer not above x, in the dtype of x."""
    return unary("floor", x, stream)


def ceil(x: object, stream: Stream | None = None) -> Tensor:
    """The smallest integer not below x, in the dtype of x."""
    return unary("ceil", x, stream)


def round(x: object, stream: Stream | None = None) -> Tensor:
    """The nearest integer, the even one of two, in the dtype of x."""
    return unary("round", x, stream)


def trunc(x: object, *, stream: Stream | None = None) -> Tensor:
    """The integer next to x toward zero, in the dtype of x."""
    return on(division.truncated(node(x)), stream)


def sign(x: object, *, stream: Stream | None = None) -> Tensor:
    """1, 0 or -1 by the sign of an element, in its dtype; 0 of NaN, as in torch; of bools themselves."""
    value = node(x)
    if value.dtype.kind == "bool":
        return on(value, stream)
    return on(call("sub", call("gt", value, 0).to(value.dtype), call("lt", value, 0).to(value.dtype)), stream)


def square(x: object, *, stream: Stream | None = None) -> Tensor:
    """x * x."""
    value = node(x)
    return on(call("mul", value, value), stream)


def reciprocal(x: object, *, stream: Stream | None = None) -> Tensor:
    """1 / x; integers give floats."""
    return on(call("div", 1.0, node(x)), stream)


def isnan(x: object, *, stream: Stream | None = None) -> Tensor:
    """Whether an element is not a number."""
    value = node(x)
    return on(call("ne", value, value), stream)


def isinf(x: object, *, stream: Stream | None = None) -> Tensor:
    """Whether an element is infinite."""
    value = node(x)
    if value.dtype.kind != "float":
        return on(call("ne", value, value), stream)  # no integer is
    return on(call("eq", call("abs", value), math.inf), stream)


def isfinite(x: object, *, stream: Stream | None = None) -> Tensor:
    """Whether an element is a number and finite."""
    value = node(x)
    if value.dtype.kind != "float":
        return on(call("eq", value, value), stream)  # all integers are
    return on(call("lt", call("abs", value), math.inf), stream)


def signbit(x: object, *, stream: Stream | None = None) -> Tensor:
    """Whether an element's sign is minus, that of -0.0 too; of NaN it is not."""
    value = node(x)
    below = call("lt", value, 0)
    if value.dtype.kind != "float":
        return on(below, stream)
    return on(
        call("logical_or", below, call("logical_and", call("eq", value, 0.0), call("div", 1.0, value) < 0)), stream
    )


def nan_to_num(
    x: object,
    nan: Number = 0.0,
    posinf: Number | None = None,
    neginf: Number | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """x with numbers in place of NaN and infinities: by default 0 and the largest and least of the dtype."""
    value = node(x)
    if value.dtype.kind != "float":
        return on(value, stream)
    limits = torch.finfo(value.dtype.torch)
    most = limits.max if posinf is None else number(posinf, "posinf")
    least = limits.min if neginf is None else number(neginf, "neginf")
    finite = call("where", call("eq", value, math.inf), float(most), value)
    finite = call("where", call("eq", value, -math.inf), float(least), finite)
    return on(call("where", call("ne", value, value), number(nan, "nan"), finite), stream)


def leaky_relu(x: object, negative_slope: Number = 0.01, *, stream: Stream | None = None) -> Tensor:
    """x where it is positive, `negative_slope` times x elsewhere."""
    value = _floats("leaky_relu", x)
    slope = _number("leaky_relu", "negative_slope", negative_slope)
    return on(call("where", value > 0, value, value * slope), stream)


def elu(x: object, alpha: Number = 1.0, *, stream: Stream | None = None) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere (Clevert et al. 2015)."""
    value = _floats("elu", x)
    below = call("expm1", call("minimum", value, 0.0)) * _number("elu", "alpha", alpha)
    return on(call("where", value > 0, value, below), stream)


def softplus(x: object, *, stream: Stream | None = None) -> Tensor:
    """log(1 + exp(x)), of any size: max(x, 0) + log1p(exp(-|x|))."""
    value = _floats("softplus", x)
    return on(call("maximum", value, 0.0) + call("log1p", call("exp", -call("abs", value))), stream)


def hardswish(x: object, *, stream: Stream | None = None) -> Tensor:
    """x * clamp(x + 3, 0, 6) / 6 (Howard et al., "Searching for MobileNetV3", 2019)."""
    value = _floats("hardswish", x)
    return on(value * call("clamp", value + 3.0, minimum=0.0, maximum=6.0) * (1.0 / 6.0), stream)


def _floats(name: str, x: object) -> Tensor:
    value = node(x)
    if value.dtype.kind != "float":
        raise DTypeError(f"{name} of {value.dtype}: defined on floating-point elements only", hints=["cast to fp32"])
    return value


def _number(name: str, parameter: str, value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"{name}: {parameter}={value!r}", hints=["a number"])
    return number(value, f"{name}: {parameter}")
