"""Activations of layers, element by element. All are maps, which fuse with their neighbours."""

from __future__ import annotations

from tessera.doors.calls.nodes import Number, call, node, on, unary
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.lazy.structures import building
from tessera.ops import OPERATORS
from tessera.ops.layout.views import is_one_of, number
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike

_GELU = OPERATORS["gelu"]


def relu(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """max(x, 0).

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and integers; not bools and complex
    (E_DTYPE).

    >>> op.relu(op.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return unary("relu", x, stream)


def gelu(x: ArrayLike, approximate: str = "none", *, stream: Stream | None = None) -> Tensor:
    """x Phi(x), with Phi the normal distribution; `approximate="tanh"` is its usual approximation.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> f"{op.gelu(1.0):.4f}"
    '0.8413'
    >>> f"{op.gelu(1.0, approximate='tanh'):.4f}"
    '0.8412'
    """
    if not is_one_of(approximate, ("none", "tanh")):
        raise ArgumentError(f"gelu: approximate={approximate!r}", hints=['"none" or "tanh"'])
    return on(building.unary(_GELU, (approximate,), node(x)), stream)


def silu(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """x sigmoid(x).

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> f"{op.silu(1.0):.4f}"
    '0.7311'
    """
    return unary("silu", x, stream)


def leaky_relu(x: ArrayLike, negative_slope: Number = 0.01, *, stream: Stream | None = None) -> Tensor:
    """x where it is positive, `negative_slope` times x elsewhere.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> op.leaky_relu(op.tensor([-4.0, 2.0]), 0.25).tolist()
    [-1.0, 2.0]
    """
    value = _floats("leaky_relu", x)
    slope = _number("leaky_relu", "negative_slope", negative_slope)
    return on(call("where", value > 0, value, value * slope), stream)


def elu(x: ArrayLike, alpha: Number = 1.0, *, stream: Stream | None = None) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere (Clevert et al. 2015).

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> f"{op.elu(-1.0):.4f}"
    '-0.6321'
    """
    value = _floats("elu", x)
    below = call("expm1", call("minimum", value, 0.0)) * _number("elu", "alpha", alpha)
    return on(call("where", value > 0, value, below), stream)


def softplus(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """log(1 + exp(x)), of any size: max(x, 0) + log1p(exp(-|x|)).

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> f"{op.softplus(0.0):.4f}"
    '0.6931'
    """
    value = _floats("softplus", x)
    return on(call("maximum", value, 0.0) + call("log1p", call("exp", -call("abs", value))), stream)


def hardswish(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """x * clamp(x + 3, 0, 6) / 6 (Howard et al., "Searching for MobileNetV3", 2019).

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> op.hardswish(op.tensor([-4.0, 0.0, 4.0])).tolist()
    [-0.0, 0.0, 4.0]
    """
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
