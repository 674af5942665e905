"""Operators. Each takes Tessera tensors, torch tensors, numpy arrays and Python numbers alike, and gives a lazy
`Tensor`.

With `stream=` the result is computed on that stream: it is planned and enqueued at the call, which returns at once, and
whoever reads the values waits for them (docs/streams.md).

Wrong operands are refused at the call: ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError (E_DTYPE), ArgumentError
(E_ARGUMENT). Shapes broadcast and dtypes meet as torch's do.

This module is the list of names; each operator stands in the module of its theme in `doors/`. An operator whose record
has a `summary`, a user's for one, is found here by its name too.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tessera import array_api as _array_api  # noqa: F401 - gives tensors `__array_namespace__`
from tessera import extend as _extend
from tessera.compiler.trace.tracing import kernel
from tessera.doors import methods as _methods  # noqa: F401 - gives tensors the methods that are functions here
from tessera.doors import numpy_functions as _numpy_functions  # noqa: F401 - gives tensors NumPy's protocols
from tessera.doors.activations import elu, gelu, hardswish, leaky_relu, relu, silu, softplus
from tessera.doors.arithmetic import (
    add,
    clamp,
    clip,
    copysign,
    div,
    floor_divide,
    fmod,
    logaddexp,
    maximum,
    minimum,
    mul,
    pow,
    remainder,
    sub,
    where,
)
from tessera.doors.attention import flash_attention
from tessera.doors.bits import (
    bitwise_and,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
)
from tessera.doors.collectives import all_reduce
from tessera.doors.comparisons import eq, ge, gt, le, logical_and, logical_not, logical_or, logical_xor, lt, ne
from tessera.doors.convolution import conv2d
from tessera.doors.creation import (
    arange,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from tessera.doors.einsum import einsum
from tessera.doors.flow import cond, map, scan, while_loop
from tessera.doors.functions import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    nan_to_num,
    neg,
    reciprocal,
    round,
    rsqrt,
    sigmoid,
    sign,
    signbit,
    sin,
    sqrt,
    square,
    tanh,
    trunc,
)
from tessera.doors.indexing import embedding, gather, index_copy, index_select, one_hot, scatter_add, take
from tessera.doors.losses import cross_entropy
from tessera.doors.normalizations import layer_norm, log_softmax, rms_norm, softmax
from tessera.doors.parts import chunk, concat, split, stack, unbind
from tessera.doors.products import constant, gemm, int8_linear, matmul, quantize
from tessera.doors.random import dropout, rand, randint, randn
from tessera.doors.reductions import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    logsumexp,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from tessera.doors.rotary import rope
from tessera.doors.selection import argsort, cumsum, sort, topk
from tessera.doors.shapes import (
    broadcast_to,
    diagonal,
    diff,
    flatten,
    flip,
    movedim,
    pad,
    permute,
    repeat_interleave,
    reshape,
    roll,
    squeeze,
    swapaxes,
    tile,
    trace,
    transpose,
    unsqueeze,
)
from tessera.doors.spectral import (
    complex,
    conj,
    fft,
    fft2,
    ifft,
    ifft2,
    imag,
    irfft,
    irfft2,
    real,
    rfft,
    rfft2,
    spectral_conv,
)
from tessera.doors.tensors import cast, tensor
from tessera.doors.trigonometry import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cosh,
    exp2,
    hypot,
    log2,
    log10,
    sinh,
    tan,
)
from tessera.doors.tuned import autotune
from tessera.doors.windows import avg_pool2d, batch_norm, depthwise_conv2d, max_pool2d
from tessera.handle import Tensor as _Tensor
from tessera.integrations.torch import autograd as _autograd  # noqa: F401 - installs what evaluates what torch follows
from tessera.ops import OPERATORS as _OPERATORS

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "all_reduce",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "autotune",
    "avg_pool2d",
    "batch_norm",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_to",
    "cast",
    "ceil",
    "chunk",
    "clamp",
    "clip",
    "complex",
    "concat",
    "cond",
    "conj",
    "constant",
    "conv2d",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cross_entropy",
    "cumsum",
    "depthwise_conv2d",
    "diagonal",
    "diff",
    "div",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "eq",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "eye",
    "fft",
    "fft2",
    "flash_attention",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "fmod",
    "full",
    "full_like",
    "gather",
    "ge",
    "gelu",
    "gemm",
    "gt",
    "hardswish",
    "hypot",
    "ifft",
    "ifft2",
    "imag",
    "index_copy",
    "index_select",
    "int8_linear",
    "irfft",
    "irfft2",
    "isfinite",
    "isinf",
    "isnan",
    "kernel",
    "layer_norm",
    "le",
    "leaky_relu",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "lt",
    "map",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "movedim",
    "mul",
    "nan_to_num",
    "ne",
    "neg",
    "one_hot",
    "ones",
    "ones_like",
    "pad",
    "permute",
    "pow",
    "prod",
    "quantize",
    "rand",
    "randint",
    "randn",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "repeat_interleave",
    "reshape",
    "rfft",
    "rfft2",
    "rms_norm",
    "roll",
    "rope",
    "round",
    "rsqrt",
    "scan",
    "scatter_add",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "sort",
    "spectral_conv",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "take",
    "tan",
    "tanh",
    "tensor",
    "tile",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unbind",
    "unsqueeze",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]


if not _TYPE_CHECKING:  # type checkers know the names above alone

    def __getattr__(name: str) -> _Callable[..., _Tensor]:
        """The function of an operator that has none in `doors/`."""
        record = _OPERATORS.get(name)
        if record is None or not record.summary:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _extend.function(record)
