"""The array API standard (2024.12), as libraries written for any array ask for it: `x.__array_namespace__()`.

Where its functions mean something else than those of `op`, which follow torch, they stand here: `sort` gives values
alone, `std` and `var` divide by n, `sign` of NaN is NaN. docs/coming-from.md says what is missing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
import torch

from tessera import dtypes
from tessera.doors import einsum, indexing, reductions, selection
from tessera.doors.calls.nodes import call, node
from tessera.doors.elementwise import arithmetic, functions
from tessera.doors.elementwise.arithmetic import (
    add,
    copysign,
    floor_divide,
    logaddexp,
    maximum,
    minimum,
    pow,
    remainder,
    where,
)
from tessera.doors.elementwise.arithmetic import div as divide
from tessera.doors.elementwise.arithmetic import mul as multiply
from tessera.doors.elementwise.arithmetic import sub as subtract
from tessera.doors.elementwise.bits import bitwise_and, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor
from tessera.doors.elementwise.bits import bitwise_not as bitwise_invert
from tessera.doors.elementwise.comparisons import eq as equal
from tessera.doors.elementwise.comparisons import ge as greater_equal
from tessera.doors.elementwise.comparisons import gt as greater
from tessera.doors.elementwise.comparisons import le as less_equal
from tessera.doors.elementwise.comparisons import logical_and, logical_not, logical_or, logical_xor
from tessera.doors.elementwise.comparisons import lt as less
from tessera.doors.elementwise.comparisons import ne as not_equal
from tessera.doors.elementwise.functions import (
    abs,
    ceil,
    cos,
    exp,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    reciprocal,
    round,
    signbit,
    sin,
    sqrt,
    square,
    tanh,
    trunc,
)
from tessera.doors.elementwise.functions import neg as negative
from tessera.doors.elementwise.trigonometry import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cosh,
    hypot,
    log2,
    log10,
    sinh,
    tan,
)
from tessera.doors.indexing import take
from tessera.doors.products import matmul
from tessera.doors.spectral import conj, imag, real
from tessera.doors.tensors import conversion as tensors
from tessera.doors.tensors import creation, parts, shapes
from tessera.doors.tensors.shapes import broadcast_to, flip, roll, tile
from tessera.doors.tensors.shapes import movedim as moveaxis
from tessera.doors.tensors.shapes import permute as permute_dims
from tessera.dtypes import bool_ as bool
from tessera.dtypes import complex64, complex128, int8, int32, int64
from tessera.dtypes import fp32 as float32
from tessera.dtypes import fp64 as float64
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.structures.promotion import broadcast_shape
from tessera.ops.rows.calls import Axis
from tessera.typing import ArrayLike, DTypeLike

__all__ = [
    "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "argsort", "asarray", "asin", "asinh",
    "astype", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip",
    "complex64", "complex128", "concat", "conj", "copysign", "cos", "cosh", "count_nonzero", "cumulative_sum", "diff",
    "divide", "e", "empty", "empty_like", "equal", "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float32",
    "float64", "floor", "floor_divide", "from_dlpack", "full", "full_like", "greater", "greater_equal", "hypot",
    "iinfo", "imag", "inf", "int8", "int32", "int64", "isdtype", "isfinite", "isinf", "isnan", "less", "less_equal",
    "linspace", "log", "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor",
    "matmul", "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan",
    "negative", "newaxis", "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive", "pow", "prod",
    "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round", "sign", "signbit", "sin",
    "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "take", "take_along_axis", "tan",
    "tanh", "tensordot", "tile", "tril", "triu", "trunc", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
]  # fmt: skip

__array_api_version__: Final = "2024.12"

e: Final = math.e
inf: Final = math.inf
nan: Final = math.nan
pi: Final = math.pi
newaxis: Final = None

_SELF: Final = sys.modules[__name__]

tril, triu, meshgrid = creation.tril, creation.triu, creation.meshgrid
argmax, argmin, all, any = reductions.argmax, reductions.argmin, reductions.all, reductions.any
max, min, count_nonzero, mean = reductions.max, reductions.min, reductions.count_nonzero, reductions.mean


# -- creation ---------------------------------------------------------------------------------------------------------


def _on(x: Tensor, device: object) -> Tensor:
    return x if device is None else x.to(device=device)


def asarray(obj: object, /, *, dtype: DTypeLike | None = None, device: object = None, copy: object = None) -> Tensor:
    """A tensor of data. Values never change, so that a copy of a tensor may share them."""
    if isinstance(obj, Tensor) or not isinstance(obj, list | tuple):
        made = node(obj) if not isinstance(obj, complex) else tensors.tensor(torch.tensor(obj))
        made = made if dtype is None else made.to(dtypes.dtype_of(dtype))
        return _on(tensors.tensor(made.torch().clone()) if copy and not isinstance(obj, Tensor) else made, device)
    return _on(tensors.tensor(numpy.asarray(obj).tolist(), dtype), device)


def from_dlpack(x: ArrayLike, /, *, device: object = None, copy: object = None) -> Tensor:
    """A tensor over the memory of another library's."""
    return asarray(x, device=device, copy=copy)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: DTypeLike | None = None, device: object = None
) -> Tensor:
    """The numbers from `start` on, before `stop`."""
    return _on(creation.arange(start, stop, step, dtype), device)


def zeros(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Zeros, float32 by default."""
    return _on(creation.zeros(shape, dtype), device)


def ones(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Ones, float32 by default."""
    return _on(creation.ones(shape, dtype), device)


def full(
    shape: int | Sequence[int], fill_value: Any, *, dtype: DTypeLike | None = None, device: object = None
) -> Tensor:
    """One value."""
    return _on(creation.full(shape, fill_value, dtype), device)


def zeros_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Zeros in the shape of x."""
    return _on(creation.zeros_like(x, dtype), device)


def ones_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Ones in the shape of x."""
    return _on(creation.ones_like(x, dtype), device)


def full_like(x: ArrayLike, /, fill_value: Any, *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """One value in the shape of x."""
    return _on(creation.full_like(x, fill_value, dtype), device)


empty, empty_like = zeros, zeros_like
"""Values that nobody asked for are zeros: a tensor that cannot be written to has others only by accident."""


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike | None = None, device: object = None
) -> Tensor:
    """Ones on a diagonal."""
    return _on(creation.eye(n_rows, n_cols, k, dtype), device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: DTypeLike | None = None, device: object = None, endpoint: Any = True
) -> Tensor:
    """Numbers at equal distances."""
    return _on(creation.linspace(start, stop, num, endpoint, dtype), device)


# -- dtypes -----------------------------------------------------------------------------------------------------------

_KINDS: Final = {
    "bool": {"bool"},
    "signed integer": {"int"},
    "unsigned integer": set(),
    "integral": {"int"},
    "real floating": {"float"},
    "complex floating": {"complex"},
    "numeric": {"int", "float", "complex"},
}


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: Any = True, device: object = None) -> Tensor:
    """x in another dtype."""
    return _on(node(x).to(dtypes.dtype_of(dtype)), device)


def can_cast(from_: Any, to: object, /) -> Any:
    """Whether type promotion leads from one dtype to the other."""
    source = from_.dtype if isinstance(from_, Tensor) else dtypes.dtype_of(from_)
    target = dtypes.dtype_of(to)
    return dtypes.promote(source, target) is target


def finfo(type: Any, /) -> Any:
    """Limits of a floating-point dtype, as torch says them."""
    return torch.finfo(dtypes.real_of(type.dtype if isinstance(type, Tensor) else dtypes.dtype_of(type)).torch)


def iinfo(type: Any, /) -> Any:
    """Limits of an integer dtype, as torch says them."""
    return torch.iinfo((type.dtype if isinstance(type, Tensor) else dtypes.dtype_of(type)).torch)


def isdtype(dtype: DTypeLike, kind: Any) -> Any:
    """Whether a dtype is another, of a kind, or one of several."""
    if isinstance(kind, tuple):
        return True in [isdtype(dtype, each) for each in kind]
    found = dtypes.dtype_of(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return found.kind in _KINDS[kind]
    return found is dtypes.dtype_of(kind)


def result_type(*arrays_and_dtypes: Any) -> dtypes.DType:
    """The dtype in which operands meet: numbers after tensors and dtypes."""
    known = [each for each in arrays_and_dtypes if not isinstance(each, int | float | complex)]
    if not known:
        raise ArgumentError("result_type of numbers alone", hints=["a tensor or a dtype among them"])
    found = [each.dtype if isinstance(each, Tensor) else dtypes.dtype_of(each) for each in known]
    met = found[0]
    for each in found[1:]:
        met = dtypes.promote(met, each)
    for number in arrays_and_dtypes:
        if isinstance(number, complex):
            met = dtypes.complex_of(met)
        elif isinstance(number, int | float):
            met = dtypes.promote_scalar(met, number)
    return met


# -- elementwise ------------------------------------------------------------------------------------------------------


def positive(x: ArrayLike, /) -> Tensor:
    """x itself."""
    return node(x)


def sign(x: ArrayLike, /) -> Tensor:
    """1, 0 or -1 by the sign of an element; NaN of NaN."""
    value = node(x)
    found = functions.sign(value)
    return found if value.dtype.kind != "float" else where(isnan(value), value, found)


# -- reductions -------------------------------------------------------------------------------------------------------


def sum(x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: Any = False) -> Tensor:
    """The sum along axes, all by default."""
    return reductions.sum(x if dtype is None else astype(x, dtype), axis, keepdims)


def prod(x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: Any = False) -> Tensor:
    """The product along axes, all by default."""
    return reductions.prod(x if dtype is None else astype(x, dtype), axis, keepdims)


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
    value = node(x) if dtype is None else astype(x, dtype)
    if axis is None:
        if len(value.shape) != 1:
            raise ArgumentError(f"cumulative_sum of a tensor of shape {value.shape}", hints=["say which axis"])
        axis = 0
    made = selection.cumsum(value, axis)
    if not include_initial:
        return made
    shape = list(made.shape)
    shape[axis] = 1
    return parts.concat([creation.zeros(shape, made.dtype), made], axis)


# -- order, search and sets -------------------------------------------------------------------------------------------


def sort(x: ArrayLike, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """The elements along an axis in order."""
    return selection.sort(x, axis, descending)[0]


def argsort(x: ArrayLike, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """The positions of the elements along an axis in order."""
    return selection.argsort(x, axis, descending)


def nonzero(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """Where elements are not 0: a row of indices for each dimension. Evaluates x."""
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("nonzero of a tensor without dimensions")
    return tuple(tensors.tensor(row.contiguous()) for row in value.torch().nonzero().unbind(1))


class _UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class _UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class _UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: ArrayLike, /) -> _UniqueAll:
    """The different elements in order, where each stands first, which each element is, and how often. Evaluates x."""
    found = numpy.unique(node(x).numpy(), return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    values, first, inverse, counts = found
    inverse = inverse.reshape(node(x).shape)
    return _UniqueAll(*(tensors.tensor(each) for each in (values, first, inverse, counts)))


def unique_counts(x: ArrayLike, /) -> _UniqueCounts:
    """The different elements in order, and how often each is there. Evaluates x."""
    found = unique_all(x)
    return _UniqueCounts(found.values, found.counts)


def unique_inverse(x: ArrayLike, /) -> _UniqueInverse:
    """The different elements in order, and which of them each element is. Evaluates x."""
    found = unique_all(x)
    return _UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: ArrayLike, /) -> Tensor:
    """The different elements in order. Evaluates x."""
    return unique_all(x).values


# -- shapes -----------------------------------------------------------------------------------------------------------


def broadcast_arrays(*arrays: ArrayLike) -> list[Tensor]:
    """Tensors repeated to the shape in which they meet."""
    nodes = [node(each) for each in arrays]
    shape = broadcast_shape([each.shape for each in nodes])
    if shape is None:
        raise ShapeMismatchError(f"shapes {' and '.join(str(each.shape) for each in nodes)} do not broadcast")
    return [broadcast_to(each, shape) for each in nodes]


def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis; without one all their elements in a row. Dtypes meet."""
    nodes = [node(each) for each in arrays]
    met = result_type(*nodes)
    nodes = [each.to(met) for each in nodes]
    return parts.concat([shapes.flatten(each) for each in nodes] if axis is None else nodes, axis or 0)


def stack(arrays: Sequence[ArrayLike], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis. Dtypes meet."""
    nodes = [node(each) for each in arrays]
    met = result_type(*nodes)
    return parts.stack([each.to(met) for each in nodes], axis)


def expand_dims(x: ArrayLike, /, *, axis: int = 0) -> Tensor:
    """x with a new dimension of extent 1."""
    return shapes.unsqueeze(x, axis)


def squeeze(x: ArrayLike, /, axis: int | Sequence[int]) -> Tensor:
    """x without dimensions, whose extents are 1. Raises ArgumentError (E_ARGUMENT) for others."""
    value = node(x)
    wanted = (axis,) if isinstance(axis, int) else tuple(axis)
    if True in [value.shape[each] != 1 for each in wanted]:
        raise ArgumentError(f"squeeze of axes {wanted} of a tensor of shape {value.shape}", hints=["of extent 1"])
    return shapes.squeeze(value, wanted)


def reshape(x: ArrayLike, /, shape: Sequence[int], *, copy: Any = None) -> Tensor:
    """The same elements under another shape."""
    return shapes.reshape(x, shape)


def repeat(x: ArrayLike, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """x with each element several times in a row."""
    return shapes.repeat_interleave(x, repeats, axis)


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """x within bounds, numbers or tensors; x itself without them."""
    return node(x) if min is None and max is None else arithmetic.clamp(x, min, max)


def diff(
    x: ArrayLike, /, *, axis: int = -1, n: int = 1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Tensor:
    """The differences of neighbours along an axis, n times, of x between what is set before it and behind it."""
    pieces = [part for part in (prepend, x, append) if part is not None]
    return shapes.diff(parts.concat(pieces, axis) if len(pieces) > 1 else x, n, axis)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of x at each place along an axis."""
    return parts.unbind(x, axis)


def take_along_axis(x: ArrayLike, indices: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """For each index its element along an axis."""
    value, places = node(x), node(indices)
    axis = axis % len(value.shape)
    extent = value.shape[axis]
    shape = broadcast_shape([(*each.shape[:axis], *each.shape[axis + 1 :]) for each in (value, places)])
    if shape is None:
        raise ShapeMismatchError(f"indices of shape {places.shape} into a tensor of shape {value.shape}")
    value = broadcast_to(value, (*shape[:axis], extent, *shape[axis:]))
    places = call("checked_index", places, what="take_along_axis", extent=extent, from_end=True)
    return indexing.gather(value, axis, broadcast_to(places, (*shape[:axis], places.shape[axis], *shape[axis:])))


# -- products ---------------------------------------------------------------------------------------------------------


def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """x with its last two dimensions exchanged."""
    return node(x).mT


def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis; of complex numbers with the first ones conjugated."""
    product = multiply(conj(x1), x2)
    return reductions.sum(product, axis).to(product.dtype)


def tensordot(x1: ArrayLike, x2: ArrayLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over pairs of axes: so many last ones of x1 and first ones of x2, or those given."""
    a, b = node(x1), node(x2)
    if isinstance(axes, int):
        axes = (range(len(a.shape) - axes, len(a.shape)), range(axes))
    first, second = [each % len(a.shape) for each in axes[0]], [each % len(b.shape) for each in axes[1]]
    rest_a = [axis for axis in range(len(a.shape)) if axis not in first]
    rest_b = [axis for axis in range(len(b.shape)) if axis not in second]
    labels_b = [len(a.shape) + axis for axis in range(len(b.shape))]
    for own, other in zip(first, second, strict=True):
        labels_b[other] = own
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text_a = "".join(letters[axis] for axis in range(len(a.shape)))
    text_b = "".join(letters[label] for label in labels_b)
    result = "".join([*(text_a[axis] for axis in rest_a), *(text_b[axis] for axis in rest_b)])
    return einsum.einsum(f"{text_a},{text_b}->{result}", a, b)


# -- what there is ----------------------------------------------------------------------------------------------------


class _Information:
    """What `__array_namespace_info__` gives."""

    def capabilities(self) -> dict[str, object]:
        """Sizes that data decide are computed, in functions that are not traced."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The CPU."""
        return "cpu"

    def devices(self) -> list[str]:
        """The CPU, and the GPUs that torch sees."""
        return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]

    def default_dtypes(self, *, device: object = None) -> dict[str, dtypes.DType]:
        """What numbers become."""
        return {
            "real floating": float32,
            "complex floating": complex64,
            "integral": int64,
            "indexing": int64,
        }

    def dtypes(self, *, device: object = None, kind: Any = None) -> dict[str, dtypes.DType]:
        """The dtypes, all or those of a kind."""
        known = {"bool": bool, "int8": int8, "int32": int32, "int64": int64, "float32": float32, "float64": float64}
        known |= {"complex64": complex64, "complex128": complex128}
        return {name: dtype for name, dtype in known.items() if kind is None or isdtype(dtype, kind)}


def __array_namespace_info__() -> _Information:  # noqa: N807  (the standard's name)
    """What the namespace offers."""
    return _Information()


def _namespace(self: Tensor, /, *, api_version: str | None = None) -> Any:
    """This module. Raises ArgumentError (E_ARGUMENT) for a version that it does not follow."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", __array_api_version__):
        raise ArgumentError(f"version {api_version!r} of the array API", hints=[__array_api_version__])
    return _SELF


Tensor.__array_namespace__ = _namespace
