"""The array API standard (2024.12), as libraries written for any array ask for it: `x.__array_namespace__()`.

Where its functions mean something else than those of `op`, which follow torch, they stand in `doors/array_api/`: `sort`
gives values alone, `std` and `var` divide by n, `sign` of NaN is NaN. docs/coming-from.md says what is missing.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Final

import torch

from tessera import dtypes
from tessera.doors import reductions
from tessera.doors.array_api.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from tessera.doors.array_api.ordering import (
    argsort,
    nonzero,
    searchsorted,
    sort,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from tessera.doors.array_api.reductions import cumulative_prod, cumulative_sum, positive, prod, sign, std, sum, var
from tessera.doors.array_api.shapes import (
    broadcast_arrays,
    clip,
    concat,
    diff,
    expand_dims,
    matrix_transpose,
    repeat,
    reshape,
    squeeze,
    stack,
    take_along_axis,
    tensordot,
    unstack,
    vecdot,
)
from tessera.doors.array_api.types import astype, can_cast, finfo, iinfo, isdtype, result_type
from tessera.doors.elementwise.arithmetic import (
    add,
    copysign,
    floor_divide,
    logaddexp,
    maximum,
    minimum,
    nextafter,
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
from tessera.doors.tensors import creation
from tessera.doors.tensors.shapes import broadcast_to, flip, roll, tile
from tessera.doors.tensors.shapes import movedim as moveaxis
from tessera.doors.tensors.shapes import permute as permute_dims
from tessera.dtypes import bool_ as bool
from tessera.dtypes import complex64, complex128, int8, int16, int32, int64, uint8
from tessera.dtypes import fp32 as float32
from tessera.dtypes import fp64 as float64
from tessera.errors import ArgumentError
from tessera.handle import Tensor

__all__ = [
    "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "argsort", "asarray", "asin",
    "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_to", "can_cast",
    "ceil", "clip", "complex64", "complex128", "concat", "conj", "copysign", "cos", "cosh", "count_nonzero",
    "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "empty", "empty_like", "equal", "exp",
    "expand_dims", "expm1", "eye", "finfo", "flip", "float32", "float64", "floor", "floor_divide", "from_dlpack",
    "full", "full_like", "greater", "greater_equal", "hypot", "iinfo", "imag", "inf", "int8", "int16", "int32",
    "int64", "isdtype", "isfinite", "isinf", "isnan", "less", "less_equal", "linspace", "log", "log1p", "log2",
    "log10", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose",
    "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis",
    "nextafter", "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive", "pow", "prod",
    "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round", "searchsorted", "sign",
    "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "uint8", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
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
        integers = {"uint8": uint8, "int8": int8, "int16": int16, "int32": int32, "int64": int64}
        floats = {"float32": float32, "float64": float64, "complex64": complex64, "complex128": complex128}
        known = {"bool": bool, **integers, **floats}
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
