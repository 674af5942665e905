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


def sum(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The sum along axes, all by default; integers and bools add up in int64."""
    return _reduction("sum", x, axis, keepdims, dim, keepdim, stream)


def mean(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The mean along axes, all by default, of floating-point elements."""
    return _reduction("mean", x, axis, keepdims, dim, keepdim, stream)


def max(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The maximum along axes, all by default; NaN if an element is. Values alone: `argmax` has the positions."""
    return _reduction("max", x, axis, keepdims, dim, keepdim, stream)


def min(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The minimum along axes, all by default; NaN if an element is. Values alone: `argmin` has the positions."""
    return _reduction("min", x, axis, keepdims, dim, keepdim, stream)


def prod(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The product along axes, all by default; integers and bools multiply in int64."""
    return _reduction("prod", x, axis, keepdims, dim, keepdim, stream)


def argmax(
    x: object,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The position (int64) of the first maximum along an axis, or in row-major order of the whole tensor; a NaN
    wins.
    """
    return _reduction("argmax", x, axis, keepdims, dim, keepdim, stream)


def argmin(
    x: object,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The position (int64) of the first minimum along an axis, or in row-major order of the whole tensor; a NaN
    wins.
    """
    value = node(x)
    # What turns the order around: -1 - x has no overflow, where the negative of the least integer has.
    turned = {"float": "neg", "int": "bitwise_not", "bool": "logical_not"}.get(value.dtype.kind, "neg")
    return _reduction("argmax", call(turned, value), axis, keepdims, dim, keepdim, stream)


def logsumexp(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """log(sum(exp(x))) along axes, all by default, without overflow; -inf of no elements."""
    return _reduction("logsumexp", x, axis, keepdims, dim, keepdim, stream)


def var(
    x: object,
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
    """
    return on(_variance("var", x, along(axis, dim), correction, kept(keepdims, keepdim)), stream)


def std(
    x: object,
    axis: Axis = None,
    correction: Number = 1,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The square root of `var`."""
    return on(call("sqrt", _variance("std", x, along(axis, dim), correction, kept(keepdims, keepdim))), stream)


def all(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """Whether all elements along axes (all by default) are true: not 0. True of no elements."""
    return on(_quantified("prod", "min", x, along(axis, dim), kept(keepdims, keepdim)), stream)


def any(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """Whether an element along axes (all by default) is true: not 0. False of no elements."""
    return on(_quantified("sum", "max", x, along(axis, dim), kept(keepdims, keepdim)), stream)


def count_nonzero(
    x: object,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """The number (int64) of elements along axes, all by default, that are not 0."""
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
    count = value.size / squares.size if squares.size else 0
    degrees = count - correction
    return call("div", squares, float(degrees) if degrees > 0 else 0.0)


def _quantified(empty: str, name: str, x: object, axis: Axis, keepdims: bool) -> Tensor:
    """Extrema of truth values; of no elements, which have none, sums and products."""
    truth = call("ne", node(x), 0)
    found: Tensor = calls.reduction(empty if 0 in truth.shape else name, truth, axis, keepdims)
    return found if found.dtype == truth.dtype else call("ne", found, 0)
