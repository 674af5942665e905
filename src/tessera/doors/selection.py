"""Scans and selections along an axis."""

from __future__ import annotations

from typing import cast as typed

from tessera.doors.calls.axes import along
from tessera.doors.calls.joint import joint
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy import issuing
from tessera.lazy.leaves.conversion import as_node
from tessera.ops.algebra import call
from tessera.ops.layout.views import flag, integer, normalized_axis, number, reshape
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def cumsum(x: ArrayLike, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """Running sums along an axis: element i is the sum of elements 0 to i. Integers and bools add up in int64, 16-bit
    floats in fp32, with a rounding to the result's dtype for each element.

    Computed by torch's library. Raises ArgumentError (E_ARGUMENT) for an axis out of range, DTypeError (E_DTYPE) for
    8-bit floats.

    Shapes: x of any shape; the result has it. Dtypes: floats; integers and bools give int64; not 8-bit floats and
    complex (E_DTYPE).

    >>> op.cumsum(op.tensor([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    node = typed(Tensor, as_node(x))
    place = normalized_axis(along(axis, dim, -1), len(node.shape))
    if not node.shape:  # a tensor without dimensions is a row of one element
        return typed(Tensor, issuing.on(reshape(call("cumsum", reshape(node, (1,)), axis=0), ()), stream))
    return typed(Tensor, issuing.on(call("cumsum", node, axis=place), stream))


def cumprod(x: ArrayLike, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """Running products along an axis: element i is the product of elements 0 to i. Integers and bools multiply in
    int64, 16-bit floats in fp32, with a rounding to the result's dtype for each element.

    Computed by torch's library. Shapes: x of any shape; the result has it. Dtypes: floats; integers and bools give
    int64; not 8-bit floats and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.cumprod(op.tensor([1, 2, 3])).tolist()
    [1, 2, 6]
    """
    node = typed(Tensor, as_node(x))
    place = normalized_axis(along(axis, dim, -1), len(node.shape))
    if not node.shape:
        return typed(Tensor, issuing.on(reshape(call("cumprod", reshape(node, (1,)), axis=0), ()), stream))
    return typed(Tensor, issuing.on(call("cumprod", node, axis=place), stream))


def cummax(
    x: ArrayLike, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None
) -> tuple[Tensor, Tensor]:
    """The largest of elements 0 to i along an axis, for each i, and its position (int64): of equal ones the last. NaN
    counts as larger than any number.

    Computed by torch's library, once: evaluating either result evaluates both. Shapes: x of any shape; both results
    have it. Dtypes: floats, integers and bools; not 8-bit floats and complex (E_DTYPE). Raises ArgumentError
    (E_ARGUMENT) for an axis out of range.

    >>> values, places = op.cummax(op.tensor([5, 3, 7]))
    >>> values.tolist(), places.tolist()
    ([5, 5, 7], [0, 0, 2])
    """
    return _extremes("cummax", x, along(axis, dim, -1), stream)


def cummin(
    x: ArrayLike, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None
) -> tuple[Tensor, Tensor]:
    """The smallest of elements 0 to i along an axis, for each i, and its position (int64): of equal ones the last. NaN
    counts as smaller than any number.

    Computed by torch's library, once: evaluating either result evaluates both. Shapes: x of any shape; both results
    have it. Dtypes: floats, integers and bools; not 8-bit floats and complex (E_DTYPE). Raises ArgumentError
    (E_ARGUMENT) for an axis out of range.

    >>> values, places = op.cummin(op.tensor([5, 3, 7]))
    >>> values.tolist(), places.tolist()
    ([5, 3, 3], [0, 1, 1])
    """
    return _extremes("cummin", x, along(axis, dim, -1), stream)


def _extremes(name: str, x: object, axis: int, stream: Stream | None) -> tuple[Tensor, Tensor]:
    node = typed(Tensor, as_node(x))
    place = normalized_axis(axis, len(node.shape))
    row = node if node.shape else reshape(node, (1,))
    values, indices = (call(f"{name}_{part}", row, axis=place) for part in ("values", "indices"))
    if not node.shape:
        values, indices = reshape(values, ()), reshape(indices, ())
    return _both(values, indices, stream)


def histc(x: ArrayLike, bins: int = 100, min: float = 0.0, max: float = 0.0, *, stream: Stream | None = None) -> Tensor:
    """How many elements lie in each of `bins` parts of equal width from `min` to `max`, of which the last holds its
    end; by default from the least to the largest element. Other elements are not counted (as `torch.histc`).

    Computed by torch's library. Shapes: x of any shape gives [bins]. Dtypes: fp32 and fp64;
    not bf16, fp16, 8-bit floats, integers, bools and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT).

    >>> op.histc(op.tensor([0.5, 1.5, 1.75, 9.0]), 2, 0, 2).tolist()
    [1.0, 2.0]
    """
    count = integer(bins, "bins")
    least, most = number(min, "min"), number(max, "max")
    if count < 1 or not least <= most:
        raise ArgumentError(f"histc: bins={bins!r}, min={min!r}, max={max!r}", hints=["bins >= 1 and min <= max"])
    return typed(Tensor, issuing.on(call("histc", as_node(x), bins=count, least=least, most=most), stream))


def topk(
    x: ArrayLike,
    k: int,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    dim: int | None = None,
    stream: Stream | None = None,
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis, in order if `sorted`, and their positions (int64). NaN counts
    as larger than any number; of equal elements any may come first.

    Computed by torch's library, once: evaluating either result evaluates both. Raises ArgumentError (E_ARGUMENT) for an
    axis out of range and more elements than there are, DTypeError (E_DTYPE) for 8-bit floats and bools.

    Shapes: x [..., n] gives [..., k] twice. Dtypes: floats and integers; not 8-bit floats, bools and complex (E_DTYPE).

    >>> values, places = op.topk(op.tensor([5, 9, 7]), 2)
    >>> values.tolist(), places.tolist()
    ([9, 7], [1, 2])
    """
    node = typed(Tensor, as_node(x))
    count, place = integer(k, "k"), normalized_axis(along(axis, dim, -1), len(node.shape))
    for name, given in (("largest", largest), ("sorted", sorted)):
        if not isinstance(given, bool):
            raise ArgumentError(f"topk: {name}={given!r}", hints=["True or False"])
    row = node if node.shape else reshape(node, (1,))
    attributes = {"k": count, "axis": place, "largest": largest, "ordered": sorted}
    values, indices = (call(name, row, **attributes) for name in ("topk_values", "topk_indices"))
    if not node.shape and count == 1:
        values, indices = reshape(values, ()), reshape(indices, ())
    return _both(values, indices, stream)


def sort(
    x: ArrayLike,
    axis: int = -1,
    descending: bool = False,
    *,
    dim: int | None = None,
    stable: bool = True,
    stream: Stream | None = None,
) -> tuple[Tensor, Tensor]:
    """The elements along an axis in order, and where they stood (int64), as in torch. Equal elements keep their order,
    whatever `stable` says; NaN counts as larger than any number.

    Computed by torch's library, once: evaluating either result evaluates both. Raises ArgumentError (E_ARGUMENT) for an
    axis out of range, DTypeError (E_DTYPE) for 8-bit floats and complex numbers.

    Shapes: x of any shape; both results have it. Dtypes: floats, integers and bools; not 8-bit floats and complex
    (E_DTYPE).

    >>> values, places = op.sort(op.tensor([5, 9, 7]), descending=True)
    >>> values.tolist(), places.tolist()
    ([9, 7, 5], [1, 2, 0])
    """
    node = typed(Tensor, as_node(x))
    place = normalized_axis(along(axis, dim, -1), len(node.shape))
    row = node if node.shape else reshape(node, (1,))
    attributes = {"axis": place, "descending": flag(descending, "descending")}
    values, indices = (call(name, row, **attributes) for name in ("sort_values", "sort_indices"))
    if not node.shape:
        values, indices = reshape(values, ()), reshape(indices, ())
    return _both(values, indices, stream)


def argsort(
    x: ArrayLike,
    axis: int = -1,
    descending: bool = False,
    *,
    dim: int | None = None,
    stable: bool = True,
    stream: Stream | None = None,
) -> Tensor:
    """The positions (int64) of the elements along an axis in order; see `sort`.

    Shapes: x of any shape; the result has it. Dtypes: floats, integers and bools give int64; not 8-bit floats and
    complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.argsort(op.tensor([5, 9, 7])).tolist()
    [0, 2, 1]
    """
    places = sort(x, axis, descending, dim=dim, stable=stable)[1]
    issuing.on(places, stream)
    return places


def searchsorted(
    row: ArrayLike, values: ArrayLike, *, right: bool = False, side: str | None = None, stream: Stream | None = None
) -> Tensor:
    """Where values belong in a row that is in order, so that it stays in order: before equal elements (int64), and with
    `right`, or `side="right"`, behind them. NaN belongs to the end. Row and values are brought to one dtype first, as
    operands of arithmetic are: a value without dimensions beside a row of bytes is a byte.

    Computed by torch's library. Shapes: row [n] and values of any shape, or row [..., n] and values [..., m]; the
    result has that of the values. Dtypes: floats and integers give int64; not 8-bit
    floats, bools and complex (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH) for other shapes, ArgumentError
    (E_ARGUMENT) for other sides.

    >>> op.searchsorted(op.tensor([1, 3, 5]), op.tensor([0, 3, 9])).tolist()
    [0, 1, 3]
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(f"searchsorted: side={side!r}, right={right!r}", hints=['side="left" or side="right"'])
    behind = flag(right, "right") or side == "right"
    made = call("searchsorted", as_node(row), as_node(values), right=behind)
    return typed(Tensor, issuing.on(made, stream))


def _both(values: Tensor, indices: Tensor, stream: Stream | None) -> tuple[Tensor, Tensor]:
    if stream is not None:
        issuing.issue_all([values, indices], stream)
        return values, indices
    values, indices = joint([values, indices])
    return values, indices
