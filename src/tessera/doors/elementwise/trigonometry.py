"""Angles, hyperbolic functions, and logarithms and powers of other bases. All are maps, which fuse."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, unary
from tessera.handle import Tensor
from tessera.runtime.streams.stream import Stream


def tan(x: object, stream: Stream | None = None) -> Tensor:
    """The tangent of radians."""
    return unary("tan", x, stream)


def asin(x: object, stream: Stream | None = None) -> Tensor:
    """The arc sine, in radians; NaN outside of -1 to 1."""
    return unary("asin", x, stream)


def acos(x: object, stream: Stream | None = None) -> Tensor:
    """The arc cosine, in radians; NaN outside of -1 to 1."""
    return unary("acos", x, stream)


def atan(x: object, stream: Stream | None = None) -> Tensor:
    """The arc tangent, in radians: -pi / 2 to pi / 2."""
    return unary("atan", x, stream)


def atan2(y: object, x: object, stream: Stream | None = None) -> Tensor:
    """The angle of the point (x, y), in radians: -pi to pi."""
    return binary("atan2", y, x, stream)


def sinh(x: object, stream: Stream | None = None) -> Tensor:
    """The hyperbolic sine."""
    return unary("sinh", x, stream)


def cosh(x: object, stream: Stream | None = None) -> Tensor:
    """The hyperbolic cosine."""
    return unary("cosh", x, stream)


def asinh(x: object, stream: Stream | None = None) -> Tensor:
    """The inverse hyperbolic sine."""
    return unary("asinh", x, stream)


def acosh(x: object, stream: Stream | None = None) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    return unary("acosh", x, stream)


def atanh(x: object, stream: Stream | None = None) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside of -1 to 1."""
    return unary("atanh", x, stream)


def log2(x: object, stream: Stream | None = None) -> Tensor:
    """The logarithm to base 2."""
    return unary("log2", x, stream)


def log10(x: object, stream: Stream | None = None) -> Tensor:
    """The logarithm to base 10."""
    return unary("log10", x, stream)


def exp2(x: object, stream: Stream | None = None) -> Tensor:
    """2 ** x."""
    return unary("exp2", x, stream)


def hypot(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """sqrt(a * a + b * b), without overflow on the way."""
    return binary("hypot", a, b, stream)
