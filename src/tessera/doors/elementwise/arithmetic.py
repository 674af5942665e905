"""Arithmetic of several operands, element by element. All are maps, which fuse with their neighbours."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, call, node, on
from tessera.doors.elementwise.functions import signbit
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_pair
from tessera.lazy.structures.promotion import common_dtype
from tessera.ops import algebra
from tessera.ops.elementwise import calls, division
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def add(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a + b; of bools, their union.

    Shapes: a and b broadcast. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.add(op.tensor([1, 2]), 0.5).tolist()
    [1.5, 2.5]
    """
    return binary("add", a, b, stream)


def sub(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a - b.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and complex; not bools (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.sub(op.tensor([1, 2]), 3).tolist()
    [-2, -1]
    """
    return binary("sub", a, b, stream)


def mul(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a * b; of bools, their intersection.

    Shapes: a and b broadcast. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.mul(op.tensor([[1], [2]]), op.tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return binary("mul", a, b, stream)


def div(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a / b; integers give floats.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats and complex; integers and bools give fp32. Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.div(op.tensor([1, 2]), 4).tolist()
    [0.25, 0.5]
    """
    return binary("div", a, b, stream)


def floor_divide(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a // b, rounded down. Integers are not divided by 0: DivisionByZeroError (E_ZERO_DIVISION).

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats and integers; not bools and complex (E_DTYPE).

    >>> op.floor_divide(op.tensor([7, -7]), 2).tolist()
    [3, -4]
    """
    return on(division.floor_divide(a, b), stream)


def remainder(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a % b, of the divisor's sign, as in Python. Integers are not divided by 0: DivisionByZeroError
    (E_ZERO_DIVISION).

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats and integers; not bools and complex (E_DTYPE).

    >>> op.remainder(op.tensor([7, -7]), 3).tolist()
    [1, 2]
    """
    return on(division.remainder(a, b), stream)


def fmod(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """What is left of a / b rounded toward zero, of the dividend's sign, as in C. Integers are not divided by 0:
    DivisionByZeroError (E_ZERO_DIVISION).

    Shapes: a and b broadcast. Dtypes: floats and integers; not 8-bit floats, bools and complex (E_DTYPE).

    >>> op.fmod(op.tensor([7, -7]), 3).tolist()
    [1, -1]
    """
    return on(division.fmod(a, b), stream)


def pow(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """a ** b. Integers refuse a negative Python exponent.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats and integers; not bools and complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.pow(op.tensor([2, 3]), 2).tolist()
    [4, 9]
    """
    first, _ = as_pair(a, b)
    return on(algebra.power(first, b), stream)


def maximum(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The larger; NaN if either is NaN.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.maximum(op.tensor([1, 5]), 3).tolist()
    [3, 5]
    """
    return binary("maximum", a, b, stream)


def minimum(a: ArrayLike, b: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The smaller; NaN if either is NaN.

    Shapes: a and b broadcast. Dtypes: floats, 8-bit floats, integers and bools; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.minimum(op.tensor([1, 5]), 3).tolist()
    [1, 3]
    """
    return binary("minimum", a, b, stream)


def clamp(
    x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None, *, stream: Stream | None = None
) -> Tensor:
    """x within bounds, numbers or tensors; at least one of them. The upper one wins where they cross.

    Shapes: x and the bounds broadcast. Dtypes: floats, 8-bit floats, integers and bools; not complex (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast, ArgumentError (E_ARGUMENT) without a bound.

    >>> op.clamp(op.tensor([-1, 5, 9]), 0, 6).tolist()
    [0, 5, 6]
    """
    if min is None and max is None:
        raise ArgumentError("clamp needs a bound", hints=["min=, max=, or both"])
    return on(calls.clamp(node(x), min, max), stream)


clip = clamp


def copysign(a: ArrayLike, b: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The size of a with the sign of b, that of -0.0 too; integers give floats.

    Shapes: a and b broadcast. Dtypes: floats and 8-bit floats; integers and bools give fp32; not complex (E_DTYPE).
    Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.copysign(op.tensor([1.0, 2.0]), op.tensor([-0.0, 3.0])).tolist()
    [-1.0, 2.0]
    """
    given, like = as_pair(a, b)
    size = call("abs", call("div", given, 1.0))  # in this order: the least integer has no absolute value of its dtype
    met = common_dtype([given.structure, like.structure])
    size = size if met.kind != "float" else call("cast", size, dtype=met)  # of a number it is fp32
    return on(call("where", signbit(like), -size, size), stream)


def nextafter(a: ArrayLike, b: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The number next to a on the way to b; b where they are equal, NaN where one is NaN.

    Computed by torch's library. Shapes: a and b broadcast. Dtypes: bf16, fp32 and fp64; not fp16, 8-bit floats,
    integers, bools and complex (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> op.nextafter(op.tensor([1.0]), 2.0).tolist()
    [1.0000001192092896]
    """
    return binary("nextafter", a, b, stream)


def logaddexp(a: ArrayLike, b: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """log(exp(a) + exp(b)) without overflow.

    Shapes: a and b broadcast. Dtypes: floats and 8-bit floats; integers give fp32; not bools and complex (E_DTYPE).
    Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not broadcast.

    >>> f"{op.logaddexp(1000.0, 1000.0):.4f}"
    '1000.6932'
    """
    first, second = as_pair(a, b)
    larger, smaller = call("maximum", first, second), call("minimum", first, second)
    # Of equal infinities the difference is NaN.
    gap = call("where", call("eq", larger, smaller), 0.0, smaller - larger)
    return on(larger + call("log1p", call("exp", gap)), stream)


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """a where the condition holds, else b; all three broadcast.

    Shapes: condition, a and b broadcast. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH) where shapes do not
    broadcast.

    >>> op.where(op.tensor([True, False]), 1, op.tensor([8, 9])).tolist()
    [1, 9]
    """
    return on(call("where", condition, a, b), stream)
