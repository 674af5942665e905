"""Reductions along axes. One made of others is one kernel, whose passes share what they read.

`axis` and `keepdims` may be written `dim` and `keepdim`.
"""

from __future__ import annotations

from tessera.doors.calls.axes import along, kept
from tessera.doors.calls.nodes import Number, call, node, on
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.ops.rows import calls
from tessera.ops.rows.calls import Axis
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def sum(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The sum along axes, all by default; integers and bools add up in int64.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats and
    complex; integers and bools give int64. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.sum(op.tensor([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    return _reduction("sum", x, axis, keepdims, dim, keepdim, stream)


def mean(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The mean along axes, all by default, of floating-point elements.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats and
    complex; not integers and bools (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.mean(op.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1, keepdims=True).tolist()
    [[1.5], [3.5]]
    """
    return _reduction("mean", x, axis, keepdims, dim, keepdim, stream)


def max(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The maximum along axes, all by default; NaN if an element is. Values alone: `argmax` has the positions.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats,
    integers and bools; not complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.max(op.tensor([[1, 2], [3, 4]]), axis=0).tolist()
    [3, 4]
    """
    return _reduction("max", x, axis, keepdims, dim, keepdim, stream)


def min(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The minimum along axes, all by default; NaN if an element is. Values alone: `argmin` has the positions.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats,
    integers and bools; not complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.min(op.tensor([[1, 2], [3, 4]]), axis=0).tolist()
    [1, 2]
    """
    return _reduction("min", x, axis, keepdims, dim, keepdim, stream)


def prod(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The product along axes, all by default; integers and bools multiply in int64.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats and 8-bit floats;
    integers and bools give int64; not complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.prod(op.tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [2, 12]
    """
    return _reduction("prod", x, axis, keepdims, dim, keepdim, stream)


def argmax(
    x: ArrayLike,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The position (int64) of the first maximum along an axis, or in row-major order of the whole tensor; a NaN
    wins.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats and
    integers give int64; not bools and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.argmax(op.tensor([[1, 7], [9, 4]]), axis=1).tolist()
    [1, 0]
    """
    return _reduction("argmax", x, axis, keepdims, dim, keepdim, stream)


def argmin(
    x: ArrayLike,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The position (int64) of the first minimum along an axis, or in row-major order of the whole tensor; a NaN
    wins.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats and
    integers give int64; not bools and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.argmin(op.tensor([[1, 7], [9, 4]]), axis=1).tolist()
    [0, 1]
    """
    value = node(x)
    # What turns the order around: -1 - x has no overflow, where the negative of the least integer has.
    turned = {"float": "neg", "int": "bitwise_not", "bool": "logical_not"}.get(value.dtype.kind, "neg")
    return _reduction("argmax", call(turned, value), axis, keepdims, dim, keepdim, stream)


def logsumexp(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """log(sum(exp(x))) along axes, all by default, without overflow; -inf of no elements.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats and 8-bit floats;
    not integers, bools and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> f"{op.logsumexp(op.tensor([1000.0, 1000.0])):.4f}"
    '1000.6932'
    """
    return _reduction("logsumexp", x, axis, keepdims, dim, keepdim, stream)


def var(
    x: ArrayLike,
    axis: Axis = None,
    correction: Number = 1,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The variance along axes, all by default: the sum of squared distances from the mean over n - correction.

    As in torch the default is the unbiased estimate, and where n - correction is not positive the result is inf or NaN.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats and 8-bit floats;
    not integers, bools and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.var(op.tensor([1.0, 2.0, 3.0])).tolist()
    1.0
    >>> op.var(op.tensor([1.0, 3.0]), correction=0).tolist()
    1.0
    """
    return on(_variance("var", x, along(axis, dim), correction, kept(keepdims, keepdim)), stream)


def std(
    x: ArrayLike,
    axis: Axis = None,
    correction: Number = 1,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The square root of `var`.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats and 8-bit floats;
    not integers, bools and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.std(op.tensor([1.0, 2.0, 3.0])).tolist()
    1.0
    """
    return on(call("sqrt", _variance("std", x, along(axis, dim), correction, kept(keepdims, keepdim))), stream)


def all(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """Whether all elements along axes (all by default) are true: not 0. True of no elements.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats,
    integers and bools give bool; not complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.all(op.tensor([[True, False], [True, True]]), axis=1).tolist()
    [False, True]
    """
    return on(_quantified("prod", "min", x, along(axis, dim), kept(keepdims, keepdim)), stream)


def any(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """Whether an element along axes (all by default) is true: not 0. False of no elements.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats,
    integers and bools give bool; not complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.any(op.tensor([[0, 0], [0, 2]]), axis=1).tolist()
    [False, True]
    """
    return on(_quantified("sum", "max", x, along(axis, dim), kept(keepdims, keepdim)), stream)


def count_nonzero(
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The number (int64) of elements along axes, all by default, that are not 0.

    Shapes: x of any shape; the result lacks `axis`, or has 1 there with `keepdims`. Dtypes: floats, 8-bit floats,
    integers and bools give int64; not complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.count_nonzero(op.tensor([[0, 0], [0, 2]]), axis=1).tolist()
    [0, 1]
    """
    return _reduction("sum", call("ne", node(x), 0), axis, keepdims, dim, keepdim, stream)


def _reduction(
    name: str, x: object, axis: Axis, keepdims: bool, dim: Axis, keepdim: bool, stream: Stream | None
) -> Tensor:
    return on(calls.reduction(name, node(x), along(axis, dim), kept(keepdims, keepdim)), stream)


def _variance(name: str, x: object, axis: Axis, correction: Number, keepdims: bool) -> Tensor:
    value = node(x)
    if value.dtype.kind != "float":
        raise DTypeError(f"{name} of {value.dtype}: defined on floating-point elements only", hints=["cast to fp32"])
    if isinstance(correction, bool) or not isinstance(correction, int | float):
        raise ArgumentError(f"{name}: correction={correction!r}", hints=["a number, 1 or 0 as a rule"])
    centred = value - mean(value, axis, keepdims=True)
    squares = sum(centred * centred, axis, keepdims)
    count = value.size // squares.size if squares.size else 0
    degrees = count - correction
    return call("div", squares, float(degrees) if degrees > 0 else 0.0)


def _quantified(empty: str, name: str, x: object, axis: Axis, keepdims: bool) -> Tensor:
    """Extrema of truth values; of no elements, which have none, sums and products."""
    truth = call("ne", node(x), 0)
    found: Tensor = calls.reduction(empty if 0 in truth.shape else name, truth, axis, keepdims)
    return found if found.dtype == truth.dtype else call("ne", found, 0)
