"""Functions of one variable, element by element. All are maps, which fuse with their neighbours."""

from __future__ import annotations

import math

import torch

from tessera.doors.calls.nodes import Number, call, node, on, unary
from tessera.handle import Tensor
from tessera.ops.elementwise import division
from tessera.ops.layout.views import number
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def neg(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """-x.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and complex; not bools (E_DTYPE).

    >>> op.neg(op.tensor([1, -2])).tolist()
    [-1, 2]
    """
    return unary("neg", x, stream)


def abs(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """|x|.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and integers; complex64 gives fp32;
    complex128 gives fp64; not bools (E_DTYPE).

    >>> op.abs(op.tensor([1, -2])).tolist()
    [1, 2]
    """
    return unary("abs", x, stream)


def exp(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """e ** x.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.exp(op.tensor([0.0, -float("inf")])).tolist()
    [1.0, 0.0]
    """
    return unary("exp", x, stream)


def log(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The natural logarithm.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.log(op.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return unary("log", x, stream)


def sqrt(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The square root.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.sqrt(op.tensor([4.0, 0.25])).tolist()
    [2.0, 0.5]
    """
    return unary("sqrt", x, stream)


def rsqrt(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """1 / sqrt(x).

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.rsqrt(op.tensor([4.0, 0.25])).tolist()
    [0.5, 2.0]
    """
    return unary("rsqrt", x, stream)


def tanh(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The hyperbolic tangent.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.tanh(1.0):.4f}"
    '0.7616'
    """
    return unary("tanh", x, stream)


def sigmoid(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """1 / (1 + exp(-x)).

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.sigmoid(op.tensor([0.0, 100.0])).tolist()
    [0.5, 1.0]
    """
    return unary("sigmoid", x, stream)


def erf(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The error function.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.erf(0.5):.4f}"
    '0.5205'
    """
    return unary("erf", x, stream)


def erfinv(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The inverse of the error function: infinite of -1 and 1, and NaN beyond.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.erfinv(0.5):.4f}"
    '0.4769'
    """
    return unary("erfinv", x, stream)


def sin(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The sine of radians, reduced with all digits of pi that the argument needs.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.sin(1e6):.4f}"
    '-0.3500'
    """
    return unary("sin", x, stream)


def cos(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The cosine of radians; as exact as `sin`.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.cos(1.0):.4f}"
    '0.5403'
    """
    return unary("cos", x, stream)


def expm1(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """e ** x - 1, exact for small x too.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.expm1(1e-6):.7e}"
    '1.0000005e-06'
    """
    return unary("expm1", x, stream)


def log1p(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The natural logarithm of 1 + x, exact for small x too.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.log1p(1e-6):.7e}"
    '9.9999954e-07'
    """
    return unary("log1p", x, stream)


def floor(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The largest integer not above x, in the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and integers; not bools and complex
    (E_DTYPE).

    >>> op.floor(op.tensor([1.5, -1.5])).tolist()
    [1.0, -2.0]
    """
    return unary("floor", x, stream)


def ceil(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The smallest integer not below x, in the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and integers; not bools and complex
    (E_DTYPE).

    >>> op.ceil(op.tensor([1.5, -1.5])).tolist()
    [2.0, -1.0]
    """
    return unary("ceil", x, stream)


def round(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The nearest integer, the even one of two, in the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and integers; not bools and complex
    (E_DTYPE).

    >>> op.round(op.tensor([0.5, 1.5, 2.5])).tolist()
    [0.0, 2.0, 2.0]
    """
    return unary("round", x, stream)


def trunc(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The integer next to x toward zero, in the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and integers; not bools and complex
    (E_DTYPE).

    >>> op.trunc(op.tensor([1.5, -1.5])).tolist()
    [1.0, -1.0]
    """
    return on(division.truncated(node(x)), stream)


def sign(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """1, 0 or -1 by the sign of an element, in its dtype; 0 of NaN, as in torch; of bools themselves.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools; not complex (E_DTYPE).

    >>> op.sign(op.tensor([3, 0, -5])).tolist()
    [1, 0, -1]
    """
    value = node(x)
    if value.dtype.kind == "bool":
        return on(value, stream)
    return on(call("sub", call("gt", value, 0).to(value.dtype), call("lt", value, 0).to(value.dtype)), stream)


def square(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """x * x.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.square(op.tensor([3, -5])).tolist()
    [9, 25]
    """
    value = node(x)
    return on(call("mul", value, value), stream)


def reciprocal(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """1 / x; integers give floats.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats and complex; integers and bools give fp32.

    >>> op.reciprocal(op.tensor([4, 8])).tolist()
    [0.25, 0.125]
    """
    return on(call("div", 1.0, node(x)), stream)


def isnan(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """Whether an element is not a number.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex
    (E_DTYPE).

    >>> op.isnan(op.tensor([1.0, float("nan")])).tolist()
    [False, True]
    """
    value = node(x)
    return on(call("ne", value, value), stream)


def isinf(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """Whether an element is infinite.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex
    (E_DTYPE).

    >>> op.isinf(op.tensor([1.0, -float("inf")])).tolist()
    [False, True]
    """
    value = node(x)
    if value.dtype.kind != "float":
        return on(call("ne", value, value), stream)  # no integer is
    return on(call("eq", call("abs", value), math.inf), stream)


def isfinite(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """Whether an element is a number and finite.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex
    (E_DTYPE).

    >>> op.isfinite(op.tensor([1.0, float("inf")])).tolist()
    [True, False]
    """
    value = node(x)
    if value.dtype.kind != "float":
        return on(call("eq", value, value), stream)  # all integers are
    return on(call("lt", call("abs", value), math.inf), stream)


def signbit(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """Whether an element's sign is minus, that of -0.0 too; of NaN it is not.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex
    (E_DTYPE).

    >>> op.signbit(op.tensor([-0.0, 0.0])).tolist()
    [True, False]
    """
    value = node(x)
    below = call("lt", value, 0)
    if value.dtype.kind != "float":
        return on(below, stream)
    return on(
        call("logical_or", below, call("logical_and", call("eq", value, 0.0), call("div", 1.0, value) < 0)), stream
    )


def nan_to_num(
    x: ArrayLike,
    nan: Number = 0.0,
    posinf: Number | None = None,
    neginf: Number | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """x with numbers in place of NaN and infinities: by default 0 and the largest and least of the dtype.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.nan_to_num(op.tensor([float("nan"), float("inf")]), posinf=9.0).tolist()
    [0.0, 9.0]
    """
    value = node(x)
    if value.dtype.kind != "float":
        return on(value, stream)
    limits = torch.finfo(value.dtype.torch)
    most = limits.max if posinf is None else number(posinf, "posinf")
    least = limits.min if neginf is None else number(neginf, "neginf")
    finite = call("where", call("eq", value, math.inf), float(most), value)
    finite = call("where", call("eq", value, -math.inf), float(least), finite)
    return on(call("where", call("ne", value, value), number(nan, "nan"), finite), stream)
