"""Comparisons and what joins them: tensors of bools, element by element."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, call, on, unary
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_pair
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def eq(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a == b, elementwise.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.eq(op.tensor([1, 2]), 2).tolist()
    [False, True]
    """
    return binary("eq", a, b, stream)


def ne(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a != b, elementwise.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.ne(op.tensor([1, 2]), 2).tolist()
    [True, False]
    """
    return binary("ne", a, b, stream)


def lt(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a < b.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.lt(op.tensor([1, 2]), 2).tolist()
    [True, False]
    """
    return binary("lt", a, b, stream)


def le(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a <= b.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.le(op.tensor([1, 2]), 2).tolist()
    [True, True]
    """
    return binary("le", a, b, stream)


def gt(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a > b.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.gt(op.tensor([1, 2]), 1).tolist()
    [False, True]
    """
    return binary("gt", a, b, stream)


def ge(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a >= b.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.ge(op.tensor([1, 2]), 2).tolist()
    [False, True]
    """
    return binary("ge", a, b, stream)


def logical_and(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """Both; numbers count as true where they are not 0.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.logical_and(op.tensor([0, 5]), True).tolist()
    [False, True]
    """
    return binary("logical_and", a, b, stream)


def logical_or(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """Either; numbers count as true where they are not 0.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.logical_or(op.tensor([0, 5]), False).tolist()
    [False, True]
    """
    return binary("logical_or", a, b, stream)


def logical_xor(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """One of both, not the other; numbers count as true where they are not 0.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.logical_xor(op.tensor([0, 5]), True).tolist()
    [True, False]
    """
    first, second = as_pair(a, b)
    return on(call("ne", call("ne", first, 0), call("ne", second, 0)), stream)


def logical_not(x: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The opposite; numbers count as true where they are not 0.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools give bool; not complex
    (E_DTYPE).

    >>> op.logical_not(op.tensor([0, 5])).tolist()
    [True, False]
    """
    return unary("logical_not", x, stream)
