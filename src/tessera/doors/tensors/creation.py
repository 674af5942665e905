"""Tensors out of nothing: constants, ranges, grids, and triangles of matrices. Kernels that use them compute them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera import dtypes
from tessera.doors.calls.axes import along
from tessera.doors.calls.nodes import Number, call, node, on
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.structures.structure import Shape
from tessera.ops import algebra
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, is_one_of, number, several
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike, DTypeLike


def zeros(shape: int | Sequence[int], dtype: DTypeLike | None = None, *, stream: Stream | None = None) -> Tensor:
    """A tensor of zeros, fp32 by default; part of the algebra, not memory, until it is asked for.

    Shapes: `shape`, an integer or several. Raises ArgumentError (E_ARGUMENT) for what is no shape.

    >>> op.zeros((2, 3)).shape
    (2, 3)
    """
    return full(shape, 0, dtypes.fp32 if dtype is None else dtype, stream=stream)


def ones(shape: int | Sequence[int], dtype: DTypeLike | None = None, *, stream: Stream | None = None) -> Tensor:
    """A tensor of ones, fp32 by default; part of the algebra, not memory, until it is asked for.

    Shapes: `shape`, an integer or several. Raises ArgumentError (E_ARGUMENT) for what is no shape.

    >>> op.ones(2).tolist()
    [1.0, 1.0]
    """
    return full(shape, 1, dtypes.fp32 if dtype is None else dtype, stream=stream)


def full(
    shape: int | Sequence[int], value: Number, dtype: DTypeLike | None = None, *, stream: Stream | None = None
) -> Tensor:
    """A tensor of one value, in the dtype that torch gives it by default: bool, int64, or fp32 of floats.

    Shapes: `shape`, an integer or several. Raises ArgumentError (E_ARGUMENT) for what is no shape.

    >>> op.full(2, 7).tolist()
    [7, 7]
    """
    if not isinstance(value, bool | int | float):
        raise ArgumentError(f"full: value={value!r}", hints=["a number"])
    extents = extents_of(shape)
    wanted = _default_dtype(value) if dtype is None else dtypes.dtype_of(dtype)
    return on(views.broadcast_to(algebra.filling(value, wanted), extents), stream)


def arange(
    start: Number,
    stop: Number | None = None,
    step: Number = 1,
    dtype: DTypeLike | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """The numbers start, start + step, ... before `stop`; of one argument 0, 1, ... before it. int64 of integers, else
    fp32. Kernels that use them compute them; no memory is read.

    Shapes: one dimension. Raises ArgumentError (E_ARGUMENT) for a step of 0 and for what is no number.

    >>> op.arange(2, 8, 3).tolist()
    [2, 5]
    """
    first, last = (0, start) if stop is None else (start, stop)
    numbers = (first, last, step)
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
        raise ArgumentError(f"arange of {numbers}", hints=["start, stop and step are numbers"])
    if not step or not all(isinstance(each, int) or math.isfinite(each) for each in numbers):
        raise ArgumentError(f"arange of {numbers}", hints=["numbers are finite, the step is not 0"])
    whole = all(isinstance(each, int) for each in numbers)
    # Integers by integer division: floats have no 64 bits.
    count = -((first - last) // step) if whole else math.ceil((last - first) / step)
    index = call("iota", shape=(max(count, 0),))
    made = index if step == 1 and whole else (index if whole else index.to(dtypes.fp64)) * step
    made = made if first == 0 else made + first
    wanted = dtypes.dtype_of(dtype) if dtype is not None else dtypes.int64 if whole else dtypes.fp32
    return on(made.to(wanted), stream)


def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None, *, stream: Stream | None = None) -> Tensor:
    """Zeros in the shape and, unless another is given, the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.zeros_like(op.tensor([1, 2])).tolist()
    [0, 0]
    """
    return full_like(x, 0, dtype, stream=stream)


def ones_like(x: ArrayLike, dtype: DTypeLike | None = None, *, stream: Stream | None = None) -> Tensor:
    """Ones in the shape and, unless another is given, the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.ones_like(op.tensor([1, 2])).tolist()
    [1, 1]
    """
    return full_like(x, 1, dtype, stream=stream)


def full_like(x: ArrayLike, value: Number, dtype: DTypeLike | None = None, *, stream: Stream | None = None) -> Tensor:
    """One value in the shape and, unless another is given, the dtype of x.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.full_like(op.tensor([1, 2]), 7).tolist()
    [7, 7]
    """
    like = node(x)
    return full(like.shape, value, like.dtype if dtype is None else dtype, stream=stream)


def eye(
    rows: int,
    columns: int | None = None,
    diagonal: int = 0,
    dtype: DTypeLike | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """A matrix of zeros with ones on a diagonal, fp32 by default; square without `columns`. Diagonals above the main
    one are numbered from 1 on, those below it from -1 down.

    Shapes: [rows, columns]. Raises ArgumentError (E_ARGUMENT).

    >>> op.eye(2, dtype="int64").tolist()
    [[1, 0], [0, 1]]
    """
    shape = extents_of((rows, rows if columns is None else columns))
    numbers = _column(shape[0]) + integer(diagonal, "the diagonal")
    hit: Tensor = call("eq", call("iota", shape=shape[1:]), numbers)
    return on(hit.to(dtypes.fp32 if dtype is None else dtypes.dtype_of(dtype)), stream)


def linspace(
    start: Number,
    stop: Number,
    num: int = 100,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    *,
    steps: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """`num` (torch's `steps`) numbers from `start` to `stop` at equal distances, fp32 by default; `stop` itself is one
    of them, unless `endpoint` is False.

    Formed in fp64 from the nearer end, so that both ends are exact.

    Shapes: [num]. Raises ArgumentError (E_ARGUMENT).

    >>> op.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    first, last = number(start, "start"), number(stop, "stop")
    count = integer(along(num, steps, 100), "num")
    if count < 0 or not math.isfinite(last - first):
        raise ArgumentError(f"linspace of {count} numbers from {start} to {stop}", hints=["finite ends, num >= 0"])
    wanted = dtypes.fp32 if dtype is None else dtypes.dtype_of(dtype)
    gaps = count - 1 if endpoint else count
    index = call("iota", shape=(count,))
    step = (last - first) / gaps if gaps else 0.0
    from_start = index.to(dtypes.fp64) * step + first
    from_stop: Tensor = last - (gaps - index).to(dtypes.fp64) * step
    made = call("where", index * 2 < gaps + 1, from_start, from_stop)
    return on(made.to(wanted), stream)


def meshgrid(*tensors: ArrayLike, indexing: str = "ij", stream: Stream | None = None) -> tuple[Tensor, ...]:
    """The coordinates of a grid's points: each of the tensors, which have one dimension, repeated along the dimensions
    of the others. The first goes along the first dimension ("ij"), or along the second ("xy").

    Shapes: tensors [n], [m], ... give results [n, m, ...]. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> [each.tolist() for each in op.meshgrid(op.tensor([1, 2]), op.tensor([3, 4]))]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    if not is_one_of(indexing, ("ij", "xy")):
        raise ArgumentError(f"meshgrid: indexing={indexing!r}", hints=['"ij" or "xy"'])
    rows = [node(each) for each in tensors]
    if any(len(row.shape) > 1 for row in rows):
        raise ShapeMismatchError("meshgrid of tensors of several dimensions", hints=["one dimension each"])
    rows = [views.reshape(row, (-1,)) if not row.shape else row for row in rows]
    order = list(range(len(rows)))
    if indexing == "xy" and len(rows) > 1:
        order[:2] = 1, 0
    shape = tuple(rows[place].shape[0] for place in order)
    made = []
    for place, row in zip(order, rows, strict=True):
        standing = views.reshape(row, [row.shape[0] if axis == place else 1 for axis in range(len(rows))])
        made.append(on(views.broadcast_to(standing, shape), stream))
    return tuple(made)


def tril(x: ArrayLike, diagonal: int = 0, *, stream: Stream | None = None) -> Tensor:
    """Matrices, the last two dimensions, with zeros above a diagonal: 0 is the main one, 1 the next above it.

    Shapes: x [..., M, N]; the result has it. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH) below two
    dimensions.

    >>> op.tril(op.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return on(_triangle("tril", x, diagonal, "le"), stream)


def triu(x: ArrayLike, diagonal: int = 0, *, stream: Stream | None = None) -> Tensor:
    """Matrices, the last two dimensions, with zeros below a diagonal: 0 is the main one, 1 the next above it.

    Shapes: x [..., M, N]; the result has it. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH) below two
    dimensions.

    >>> op.triu(op.ones((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return on(_triangle("triu", x, diagonal, "ge"), stream)


def _triangle(name: str, x: object, diagonal: int, kept: str) -> Tensor:
    value = node(x)
    if len(value.shape) < 2:
        raise ShapeMismatchError(f"{name} of a tensor of shape {value.shape}", hints=["a matrix has two dimensions"])
    border = _column(value.shape[-2]) + integer(diagonal, "the diagonal")
    inside = call(kept, call("iota", shape=value.shape[-1:]), border)
    return call("where", inside, value, algebra.literal(0, value.dtype))


def _column(extent: int) -> Tensor:
    """0, 1, ... below an extent, one below the other."""
    return call("iota", shape=(extent, 1))


def extents_of(shape: int | Sequence[int]) -> Shape:
    """A shape as users give it. Raises ArgumentError (E_ARGUMENT) for what is none."""
    given = (shape,) if isinstance(shape, int) else several(shape, "extents")
    extents = tuple(integer(extent, "an extent") for extent in given)
    if min(extents, default=0) < 0:
        raise ArgumentError(f"a shape of negative extents: {extents}")
    return extents


def _default_dtype(value: Number) -> dtypes.DType:
    if isinstance(value, bool):
        return dtypes.bool_
    return dtypes.int64 if isinstance(value, int) else dtypes.fp32
