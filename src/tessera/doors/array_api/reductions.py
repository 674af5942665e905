"""Signs and reductions of the array API standard: `std` and `var` divide by n, `sign` of NaN is NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.doors import reductions, selection
from tessera.doors.array_api.types import astype
from tessera.doors.calls.nodes import node
from tessera.doors.elementwise import functions
from tessera.doors.elementwise.arithmetic import where
from tessera.doors.elementwise.functions import isnan
from tessera.doors.tensors import creation, parts
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.ops.rows.calls import Axis
from tessera.typing import ArrayLike, DTypeLike


def positive(x: ArrayLike, /) -> Tensor:
    """x itself."""
    return node(x)


def sign(x: ArrayLike, /) -> Tensor:
    """1, 0 or -1 by the sign of an element; NaN of NaN."""
    value = node(x)
    found = functions.sign(value)
    return found if value.dtype.kind != "float" else where(isnan(value), value, found)


def sum(x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: Any = False) -> Tensor:
    """The sum along axes, all by default."""
    return _given(reductions.sum(_as(x, dtype), axis, keepdims), dtype)


def prod(x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: Any = False) -> Tensor:
    """The product along axes, all by default."""
    return _given(reductions.prod(_as(x, dtype), axis, keepdims), dtype)


def var(x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """The variance along axes, all by default: over n."""
    return reductions.var(x, axis, correction, keepdims)


def std(x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """The standard deviation along axes, all by default: over n."""
    return reductions.std(x, axis, correction, keepdims)


def cumulative_sum(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: Any = False
) -> Tensor:
    """Running sums along an axis, which a tensor of one dimension need not name; with `include_initial` from 0 on."""
    return _running("cumulative_sum", selection.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: Any = False
) -> Tensor:
    """Running products along an axis, which a tensor of one dimension need not name; with `include_initial` from 1
    on.
    """
    return _running("cumulative_prod", selection.cumprod, 1, x, axis, dtype, include_initial)


def _running(
    name: str,
    scan: Callable[[Tensor, int], Tensor],
    initial: int,
    x: ArrayLike,
    axis: int | None,
    dtype: DTypeLike | None,
    include_initial: Any,
) -> Tensor:
    value = _as(x, dtype)
    if axis is None:
        if len(value.shape) != 1:
            raise ArgumentError(f"{name} of a tensor of shape {value.shape}", hints=["say which axis"])
        axis = 0
    made = _given(scan(value, axis), dtype)
    if not include_initial:
        return made
    shape = list(made.shape)
    shape[axis] = 1
    return parts.concat([creation.full(shape, initial, made.dtype), made], axis)


def _as(x: ArrayLike, dtype: DTypeLike | None) -> Tensor:
    return node(x) if dtype is None else astype(x, dtype)


def _given(made: Tensor, dtype: DTypeLike | None) -> Tensor:
    """A result in the dtype that was asked for: those of integers are int64."""
    return made if dtype is None else astype(made, dtype)
