"""Bits of integers, element by element; of bools they are logical operators."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, unary
from tessera.handle import Tensor
from tessera.runtime.streams.stream import Stream


def bitwise_and(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The bits that both have."""
    return binary("bitwise_and", a, b, stream)


def bitwise_or(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The bits that either has."""
    return binary("bitwise_or", a, b, stream)


def bitwise_xor(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The bits that one has and the other has not."""
    return binary("bitwise_xor", a, b, stream)


def bitwise_not(x: object, stream: Stream | None = None) -> Tensor:
    """The bits that x has not: -1 - x."""
    return unary("bitwise_not", x, stream)


def bitwise_left_shift(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a * 2 ** b; 0 where b is negative or no bit is left."""
    return binary("bitwise_left_shift", a, b, stream)


def bitwise_right_shift(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a / 2 ** b, rounded down; -1 or 0, by the sign of a, where b is negative or no bit is left."""
    return binary("bitwise_right_shift", a, b, stream)
