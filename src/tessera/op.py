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

from tessera import extend as _extend
from tessera.compiler.trace.tracing import kernel
from tessera.doors.arithmetic import add, clamp, div, maximum, minimum, mul, pow, sub, where
from tessera.doors.attention import flash_attention
from tessera.doors.collectives import all_reduce
from tessera.doors.comparisons import eq, ge, gt, le, logical_and, logical_not, logical_or, lt, ne
from tessera.doors.convolution import conv2d
from tessera.doors.einsum import einsum
from tessera.doors.functions import (
    abs,
    ceil,
    cos,
    elu,
    erf,
    exp,
    expm1,
    floor,
    gelu,
    hardswish,
    isnan,
    leaky_relu,
    log,
    log1p,
    neg,
    relu,
    round,
    rsqrt,
    sigmoid,
    silu,
    sin,
    softplus,
    sqrt,
    tanh,
)
from tessera.doors.indexing import embedding, gather, index_copy, index_select, one_hot, scatter_add, take
from tessera.doors.losses import cross_entropy
from tessera.doors.normalizations import layer_norm, log_softmax, rms_norm, softmax
from tessera.doors.products import constant, gemm, int8_linear, matmul, quantize
from tessera.doors.random import dropout
from tessera.doors.reductions import all, any, argmax, logsumexp, max, mean, min, prod, std, sum, var
from tessera.doors.rotary import rope
from tessera.doors.selection import cumsum, topk
from tessera.doors.shapes import (
    arange,
    broadcast_to,
    concat,
    flip,
    full,
    ones,
    pad,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    transpose,
    unsqueeze,
    zeros,
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
from tessera.doors.tuned import autotune
from tessera.doors.windows import avg_pool2d, batch_norm, depthwise_conv2d, max_pool2d
from tessera.handle import Tensor as _Tensor
from tessera.integrations.torch import autograd as _autograd  # noqa: F401 - installs what evaluates what torch follows
from tessera.ops import OPERATORS as _OPERATORS

__all__ = [
    "abs",
    "add",
    "all",
    "all_reduce",
    "any",
    "arange",
    "argmax",
    "autotune",
    "avg_pool2d",
    "batch_norm",
    "broadcast_to",
    "cast",
    "ceil",
    "clamp",
    "complex",
    "concat",
    "conj",
    "constant",
    "conv2d",
    "cos",
    "cross_entropy",
    "cumsum",
    "depthwise_conv2d",
    "div",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "eq",
    "erf",
    "exp",
    "expm1",
    "fft",
    "fft2",
    "flash_attention",
    "flip",
    "floor",
    "full",
    "gather",
    "ge",
    "gelu",
    "gemm",
    "gt",
    "hardswish",
    "ifft",
    "ifft2",
    "imag",
    "index_copy",
    "index_select",
    "int8_linear",
    "irfft",
    "irfft2",
    "isnan",
    "kernel",
    "layer_norm",
    "le",
    "leaky_relu",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "lt",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mul",
    "ne",
    "neg",
    "one_hot",
    "ones",
    "pad",
    "pow",
    "prod",
    "quantize",
    "real",
    "relu",
    "reshape",
    "rfft",
    "rfft2",
    "rms_norm",
    "rope",
    "round",
    "rsqrt",
    "scatter_add",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "spectral_conv",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "take",
    "tanh",
    "tensor",
    "topk",
    "transpose",
    "unsqueeze",
    "var",
    "where",
    "zeros",
]


if not _TYPE_CHECKING:  # type checkers know the names above alone

    def __getattr__(name: str) -> _Callable[..., _Tensor]:
        """The function of an operator that has none in `doors/`."""
        record = _OPERATORS.get(name)
        if record is None or not record.summary:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _extend.function(record)
