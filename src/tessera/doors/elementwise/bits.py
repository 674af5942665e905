"""Bits of integers, element by element; of bools they are logical operators."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, unary
from tessera.handle import Tensor
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def bitwise_and(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The bits that both have.

    Shapes: a and b broadcast. Dtypes: integers and bools; not floats, 8-bit floats and complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.bitwise_and(op.tensor([6, 5]), 3).tolist()
    [2, 1]
    """
    return binary("bitwise_and", a, b, stream)


def bitwise_or(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The bits that either has.

    Shapes: a and b broadcast. Dtypes: integers and bools; not floats, 8-bit floats and complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.bitwise_or(op.tensor([6, 5]), 3).tolist()
    [7, 7]
    """
    return binary("bitwise_or", a, b, stream)


def bitwise_xor(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The bits that one has and the other has not.

    Shapes: a and b broadcast. Dtypes: integers and bools; not floats, 8-bit floats and complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.bitwise_xor(op.tensor([6, 5]), 3).tolist()
    [5, 6]
    """
    return binary("bitwise_xor", a, b, stream)


def bitwise_not(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The bits that x has not: -1 - x.

    Shapes: x of any shape; the result has it. Dtypes: integers and bools; not floats, 8-bit floats and complex
    (E_DTYPE).

    >>> op.bitwise_not(op.tensor([0, 5])).tolist()
    [-1, -6]
    """
    return unary("bitwise_not", x, stream)


def bitwise_left_shift(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a * 2 ** b; 0 where b is negative or no bit is left.

    Shapes: a and b broadcast. Dtypes: integers; not floats, 8-bit floats, bools and complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.bitwise_left_shift(op.tensor([1, 3]), 4).tolist()
    [16, 48]
    """
    return binary("bitwise_left_shift", a, b, stream)


def bitwise_right_shift(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a / 2 ** b, rounded down; -1 or 0, by the sign of a, where b is negative or no bit is left.

    Shapes: a and b broadcast. Dtypes: integers; not floats, 8-bit floats, bools and complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.bitwise_right_shift(op.tensor([16, -1]), 2).tolist()
    [4, -1]
    """
    return binary("bitwise_right_shift", a, b, stream)
