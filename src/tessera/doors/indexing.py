"""Places given by tensors of indices. Indices are integers from 0; one out of range is IndexRangeError (E_INDEX), with
its value and place, when the result is evaluated: nothing outside of a tensor is read or written.
"""

from __future__ import annotations

import math

import torch

from tessera import dtypes
from tessera.doors.calls.axes import along
from tessera.doors.calls.nodes import call, node, on
from tessera.doors.tensors.creation import full
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops.layout import views
from tessera.ops.layout.views import flag, integer, normalized_axis
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike, DTypeLike


def embedding(
    weight: ArrayLike, indices: ArrayLike, padding_idx: int | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The rows of `weight`, [rows, width], at `indices` of any shape: [*indices.shape, width].

    The row `padding_idx` gets no gradient; its values are given as they are (as in torch).

    Shapes: weight [rows, width] and indices [...] give [..., width]. Dtypes: floats, integers, bools and complex; not
    8-bit floats (E_DTYPE). Raises IndexRangeError (E_INDEX) when it is evaluated, ShapeMismatchError
    (E_SHAPE_MISMATCH).

    >>> op.embedding(op.tensor([[1, 2], [3, 4]]), op.tensor([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    """
    table = node(weight)
    if len(table.shape) != 2:
        raise ShapeMismatchError(f"embedding: a weight of shape {table.shape}", hints=["[rows, width]"])
    places = node(indices)
    held = None if padding_idx is None else integer(padding_idx, "padding_idx")
    if held is not None and not -table.shape[0] <= held < table.shape[0]:
        raise ArgumentError(f"embedding: padding_idx={held} of {table.shape[0]} rows")
    held = None if held is None else held % table.shape[0]
    return on(call("take", table, places, what="embedding", axis=0, held=held), stream)


def index_select(
    x: ArrayLike,
    axis: int | None = None,
    index: ArrayLike | None = None,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """The parts of x along an axis at the places of `index`, which has one dimension.

    Shapes: x [..., n, ...] and indices; theirs stands in place of n. Dtypes: floats, integers, bools and complex; not
    8-bit floats (E_DTYPE). Raises IndexRangeError (E_INDEX) when it is evaluated, ArgumentError (E_ARGUMENT) for an
    axis out of range.

    >>> op.index_select(op.tensor([[1, 2], [3, 4]]), 1, op.tensor([1])).tolist()
    [[2], [4]]
    """
    value, places = node(x), node(index)
    if len(places.shape) != 1:
        raise ShapeMismatchError(f"index_select: an index of shape {places.shape}", hints=["one dimension"])
    return on(_taken("index_select", value, places, along(axis, dim)), stream)


def take(
    x: ArrayLike, indices: ArrayLike, axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> Tensor:
    """The parts of x along an axis at the places of `indices`, whose dimensions stand in the axis' place (as in
    numpy).

    Shapes: x [..., n, ...] and indices; theirs stands in place of n. Dtypes: floats, integers, bools and complex; not
    8-bit floats (E_DTYPE). Raises IndexRangeError (E_INDEX) when it is evaluated, ArgumentError (E_ARGUMENT) for an
    axis out of range.

    >>> op.take(op.tensor([5, 6, 7]), op.tensor([[2, 0]])).tolist()
    [[7, 5]]
    """
    return on(_taken("take", node(x), node(indices), along(axis, dim, 0)), stream)


def gather(
    x: ArrayLike,
    axis: int | None = None,
    index: ArrayLike | None = None,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """For each index its element of x along an axis: result[i, j] = x[index[i, j], j] of axis 0 (as `torch.gather`).

    Shapes: index, which is not larger than x but along the axis; the result has it. Dtypes: floats, integers, bools and
    complex; not 8-bit floats (E_DTYPE). Raises IndexRangeError (E_INDEX) when it is evaluated, ShapeMismatchError
    (E_SHAPE_MISMATCH).

    >>> op.gather(op.tensor([[1, 2], [3, 4]]), 1, op.tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    value = node(x)
    return on(call("gather", value, node(index), axis=_axis(value, along(axis, dim))), stream)


def index_copy(
    x: ArrayLike,
    axis: int | None = None,
    index: ArrayLike | None = None,
    source: ArrayLike | None = None,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """x with the parts along an axis at the places of `index`, which has one dimension, replaced by those of `source`
    (as `torch.index_copy`). Of several parts at one place the last one stays.

    Shapes: the result has x's. Dtypes: floats, integers, bools and complex; not 8-bit floats (E_DTYPE). Raises
    IndexRangeError (E_INDEX) when it is evaluated, ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> op.index_copy(op.zeros(3), 0, op.tensor([2]), op.ones(1)).tolist()
    [0.0, 0.0, 1.0]
    """
    value, places = node(x), node(index)
    if len(places.shape) != 1:
        raise ShapeMismatchError(f"index_copy: an index of shape {places.shape}", hints=["one dimension"])
    return on(call("put", value, places, node(source), what="index_copy", axis=_axis(value, along(axis, dim))), stream)


def scatter_add(
    x: ArrayLike,
    axis: int | None = None,
    index: ArrayLike | None = None,
    source: ArrayLike | None = None,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """x with elements of `source` added at the places of `index` along an axis: result[index[i, j], j] += source[i, j]
    of axis 0 (as `torch.scatter_add`).

    Elements at one place are added in the order of the indices, so that results are the same each time; sums of 16-bit
    floats are formed in fp32.

    Shapes: the result has x's. Dtypes: floats, integers, bools and complex; not 8-bit floats (E_DTYPE). Raises
    IndexRangeError (E_INDEX) when it is evaluated, ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> op.scatter_add(op.zeros(3), 0, op.tensor([2, 2]), op.ones(2)).tolist()
    [0.0, 0.0, 2.0]
    """
    value, added = node(x), node(source)
    return on(call("scatter_add", value, node(index), added, axis=_axis(value, along(axis, dim))), stream)


def scatter(
    x: ArrayLike,
    axis: int | None = None,
    index: ArrayLike | None = None,
    source: ArrayLike | None = None,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """x with the elements at the places of `index` along an axis replaced by those of `source`: result[index[i, j], j]
    = source[i, j] of axis 0 (as `torch.scatter`). Of several elements at one place the last one stays; a number as
    `source` is at all places.

    Shapes: the result has x's. Dtypes: floats, integers, bools and complex; not 8-bit floats (E_DTYPE). Raises
    IndexRangeError (E_INDEX) when it is evaluated, ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> op.scatter(op.zeros(3), 0, op.tensor([2]), op.ones(1)).tolist()
    [0.0, 0.0, 1.0]
    """
    value, places = node(x), node(index)
    given = _source(value, places, source)
    return on(call("scatter", value, places, given, axis=_axis(value, along(axis, dim))), stream)


def scatter_reduce(
    x: ArrayLike,
    axis: int | None = None,
    index: ArrayLike | None = None,
    source: ArrayLike | None = None,
    reduce: str = "sum",
    include_self: bool = True,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """x with what meets at a place combined: `"sum"`, `"prod"`, `"mean"`, `"amax"` or `"amin"` of the elements of
    `source` whose index along an axis names the place, and of x's own element if `include_self` (as
    `torch.scatter_reduce`). What no index names stays as it is.

    Shapes: the result has x's. Dtypes: floats, integers, bools and complex; not 8-bit floats (E_DTYPE). Raises
    IndexRangeError (E_INDEX) when it is evaluated, ShapeMismatchError (E_SHAPE_MISMATCH), ArgumentError (E_ARGUMENT).

    >>> op.scatter_reduce(op.zeros(2), 0, op.tensor([1, 1]), op.tensor([3.0, 5.0]), "amax").tolist()
    [0.0, 5.0]
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ArgumentError(f"scatter_reduce: reduce={reduce!r}", hints=['"sum", "prod", "mean", "amax" or "amin"'])
    value, places, given = node(x), node(index), node(source)
    place = _axis(value, along(axis, dim))
    if not flag(include_self, "include_self"):
        first = full((), _neutral(reduce, value.dtype), value.dtype)
        value = call("scatter", value, places, views.broadcast_to(first, places.shape), axis=place)
    if reduce in ("amax", "amin"):
        return on(call("scatter_extreme", value, places, given, axis=place, largest=reduce == "amax"), stream)
    if reduce == "prod":
        return on(call("scatter_product", value, places, given, axis=place), stream)
    total = call("scatter_add", value, places, given, axis=place)
    if reduce == "sum":
        return on(total, stream)
    ones = full(places.shape, 1, dtypes.int64)
    own = full(value.shape, 1, dtypes.int64)
    if not include_self:
        own = call("scatter", own, places, ones * 0, axis=place)
    count = call("maximum", call("scatter_add", own, places, ones, axis=place), full((), 1, dtypes.int64))
    if value.dtype.kind != "float":
        return on(call("floor_divide", total, count.to(value.dtype)), stream)
    return on(call("cast", call("div", total, count.to(dtypes.accumulator(value.dtype))), dtype=value.dtype), stream)


def _neutral(reduce: str, dtype: dtypes.DType) -> float:
    """The number of a dtype that changes nothing that it is combined with."""
    if reduce not in ("amax", "amin"):
        return 1 if reduce == "prod" else 0
    if dtype.kind == "float":
        return -math.inf if reduce == "amax" else math.inf
    if dtype.kind == "bool":
        return reduce == "amin"
    limits = torch.iinfo(dtype.torch)
    return limits.min if reduce == "amax" else limits.max


def _source(value: Tensor, places: Tensor, source: object) -> Tensor:
    """What is put at places: a tensor of the value's dtype, or one number for all."""
    given = full((), source, value.dtype) if isinstance(source, bool | int | float) else node(source)
    return given if given.shape else views.broadcast_to(given, places.shape)


def one_hot(
    indices: ArrayLike, num_classes: int, dtype: DTypeLike | None = None, *, stream: Stream | None = None
) -> Tensor:
    """Rows of zeros with a one at each index: [*indices.shape, num_classes], int64 by default. A map that fuses.

    Shapes: indices [...] give [..., num_classes]. Dtypes: integers give int64; not floats, 8-bit floats, bools and
    complex (E_DTYPE). Raises IndexRangeError (E_INDEX) when it is evaluated.

    >>> op.one_hot(op.tensor([2, 0]), 3).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    count = integer(num_classes, "num_classes")
    if count < 0:
        raise ArgumentError(f"one_hot: num_classes={count}")
    places = call("checked_index", node(indices), what="one_hot", extent=count)
    column = views.reshape(places, (*places.shape, 1))
    hit: Tensor = column == call("iota", shape=(count,))
    return on(hit.to(dtypes.int64 if dtype is None else dtypes.dtype_of(dtype)), stream)


def _axis(value: Tensor, axis: int | None) -> int:
    if axis is None:
        raise ArgumentError("no axis is given", hints=["axis=0, or dim=0"])
    if not value.shape:
        raise ShapeMismatchError("indices into a tensor without dimensions", hints=["reshape it to (1,)"])
    return normalized_axis(axis, len(value.shape))


def _taken(what: str, value: Tensor, places: Tensor, axis: int | None) -> Tensor:
    return call("take", value, places, what=what, axis=_axis(value, axis))
