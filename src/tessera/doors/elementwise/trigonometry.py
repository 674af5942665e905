"""Angles, hyperbolic functions, and logarithms and powers of other bases. All are maps, which fuse."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, unary
from tessera.handle import Tensor
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def tan(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The tangent of radians.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.tan(1.0):.4f}"
    '1.5574'
    """
    return unary("tan", x, stream)


def asin(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The arc sine, in radians; NaN outside of -1 to 1.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.asin(1.0):.4f}"
    '1.5708'
    """
    return unary("asin", x, stream)


def acos(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The arc cosine, in radians; NaN outside of -1 to 1.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.acos(0.0):.4f}"
    '1.5708'
    """
    return unary("acos", x, stream)


def atan(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The arc tangent, in radians: -pi / 2 to pi / 2.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.atan(1.0):.4f}"
    '0.7854'
    """
    return unary("atan", x, stream)


def atan2(y: ArrayLike, x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The angle of the point (x, y), in radians: -pi to pi.

    Shapes: a and b broadcast. Dtypes: floats and 8-bit floats; integers and bools give fp32; not complex (E_DTYPE).
    Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> f"{op.atan2(1.0, -1.0):.4f}"
    '2.3562'
    """
    return binary("atan2", y, x, stream)


def sinh(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The hyperbolic sine.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.sinh(1.0):.4f}"
    '1.1752'
    """
    return unary("sinh", x, stream)


def cosh(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The hyperbolic cosine.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.cosh(1.0):.4f}"
    '1.5431'
    """
    return unary("cosh", x, stream)


def asinh(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The inverse hyperbolic sine.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.asinh(1.0):.4f}"
    '0.8814'
    """
    return unary("asinh", x, stream)


def acosh(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.acosh(2.0):.4f}"
    '1.3170'
    """
    return unary("acosh", x, stream)


def atanh(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside of -1 to 1.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> f"{op.atanh(0.5):.4f}"
    '0.5493'
    """
    return unary("atanh", x, stream)


def log2(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The logarithm to base 2.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.log2(op.tensor([8.0, 0.5])).tolist()
    [3.0, -1.0]
    """
    return unary("log2", x, stream)


def log10(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The logarithm to base 10.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.log10(op.tensor([100.0, 1.0])).tolist()
    [2.0, 0.0]
    """
    return unary("log10", x, stream)


def exp2(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """2 ** x.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; integers and bools give fp32; not
    complex (E_DTYPE).

    >>> op.exp2(op.tensor([3.0, -1.0])).tolist()
    [8.0, 0.5]
    """
    return unary("exp2", x, stream)


def hypot(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """sqrt(a * a + b * b), without overflow on the way.

    Shapes: a and b broadcast. Dtypes: floats and 8-bit floats; integers and bools give fp32; not complex (E_DTYPE).
    Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.hypot(3.0, 4.0).tolist()
    5.0
    """
    return binary("hypot", a, b, stream)
