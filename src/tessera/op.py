"""Operators. Each takes Tessera tensors, torch tensors, numpy arrays and Python numbers alike, and gives a lazy
`Tensor`.

With `stream=` the result is computed on that stream: it is planned and enqueued at the call, which returns at once, and
whoever reads the values waits for them (docs/streams.md).

Wrong operands are refused at the call: ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError (E_DTYPE), ArgumentError
(E_ARGUMENT). Shapes broadcast and dtypes meet as torch's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from typing import cast as typed

import numpy
import torch

from tessera import dtypes
from tessera.compiler.tiles import refuse_impossible
from tessera.compiler.tracing import kernel
from tessera.doors.convolution import conv2d
from tessera.doors.einsum import einsum
from tessera.doors.functions import (
    ceil,
    cos,
    elu,
    expm1,
    floor,
    hardswish,
    isnan,
    leaky_relu,
    log1p,
    round,
    sin,
    softplus,
)
from tessera.doors.indexing import embedding, gather, index_select, one_hot, scatter_add, take
from tessera.doors.losses import cross_entropy
from tessera.doors.products import constant, int8_linear, quantize
from tessera.doors.random import dropout
from tessera.doors.reductions import all, any, logsumexp, std, var
from tessera.doors.rotary import rope
from tessera.doors.selection import cumsum, topk
from tessera.doors.shapes import arange, flip, full, ones, pad, split, squeeze, stack, swapaxes, unsqueeze, zeros
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
from tessera.doors.windows import avg_pool2d, batch_norm, depthwise_conv2d, max_pool2d
from tessera.errors import ArgumentError
from tessera.handle import Tensor, check_device
from tessera.lazy import issuing, sources
from tessera.lazy.building import unary
from tessera.lazy.conversion import as_node, as_pair
from tessera.lazy.node import leaf_node
from tessera.ops import OPERATORS, algebra, bounds, calls, products, views
from tessera.ops.calls import Axis
from tessera.runtime.streams import Stream

__all__ = [
    "abs",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
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

_Output: TypeAlias = torch.Tensor | numpy.ndarray[Any, Any]

# `ops` makes nodes of the class that `handle` installed.
_unary = typed(Callable[[str, object, Stream | None], Tensor], algebra.call_unary)
_binary = typed(Callable[[str, object, object, Stream | None], Tensor], algebra.call_binary)
_on = typed(Callable[[object, Stream | None], Tensor], issuing.on)
_GELU = OPERATORS["gelu"]
_node = typed(Callable[[object], Tensor], as_node)


def tensor(shape_or_data: object, dtype: object = None, device: object = None) -> Tensor:
    """A tensor. Of a tuple of ints or a `torch.Size`: that shape, filled with reproducible standard-normal values
    (fp32).

    All else is data: torch, numpy, DLPack, nested lists; borrowed where its dtype and device are the wanted ones.
    `device` is "cpu", "cuda", "cuda:1", ... or "interpreter" (CPU memory on which a GPU's kernels are interpreted);
    without one data stays where it is. Raises DeviceError (E_DEVICE) for a device that there is not.
    """
    place = None if device is None else check_device(device)
    made = _tensor(shape_or_data, dtype)
    return made if place is None else made.to(place)


def _tensor(shape_or_data: object, dtype: object) -> Tensor:
    wanted = None if dtype is None else dtypes.dtype_of(dtype)
    if isinstance(shape_or_data, tuple) and {type(extent) for extent in shape_or_data} <= {int}:
        return typed(Tensor, leaf_node(sources.standard_normal(shape_or_data, wanted or dtypes.fp32)))
    if isinstance(shape_or_data, Tensor):
        return shape_or_data if wanted is None else shape_or_data.to(wanted)
    return typed(Tensor, leaf_node(sources.from_data(shape_or_data, wanted)))


def matmul(
    a: object,
    b: object,
    *,
    tile_shape: Sequence[int] | None = None,
    accum_dtype: object = None,
    math: str | None = None,
    out: _Output | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """`a @ b`, batched and broadcast as in torch; operands may be transposed views.

    `tile_shape` asks for a tile (BM, BN, BK), which is refused if no kernel can have it; `math="tf32"` permits rounded
    products. `accum_dtype` is the dtype of products and sums: fp32 (of fp32 and narrower) or fp64; the result's dtype
    stays. With `out` the product is computed at once (or on `stream`), into that memory. Mixed dtypes: the result has
    the wider one; of fp8_e4m3 and fp8_e5m2, neither of which is, that of the sums, fp32.
    """
    settings = products.DEFAULTS
    if tile_shape is not None or math is not None:
        settings = products.settings_of(tile_shape, math)
    (first, second), narrow = as_pair(a, b), None
    if accum_dtype is not None:
        (first, second), narrow = products.summed_in(accum_dtype, "matmul", (first, second))
    result: Tensor = products.matmul(first, second, settings)
    if tile_shape is not None:
        refuse_impossible(settings[0], first, second)
    result = result if narrow is None else result.to(narrow)
    return result if out is None and stream is None else result.eval(out, stream)


def gemm(
    a: object,
    b: object,
    c: object = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    tile_shape: Sequence[int] | None = None,
    accum_dtype: object = None,
    math: str | None = None,
    out: _Output | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """`alpha * (a @ b) + beta * c`; `c` broadcasts to the product, and is not read where `beta` is 0. Else as
    `matmul`. Raises ArgumentError (E_ARGUMENT) where integers would be scaled by a fraction.
    """
    operands: Sequence[Any] = as_pair(a, b) if c is None else (*as_pair(a, b), _node(c))
    narrow = None
    if accum_dtype is not None:
        operands, narrow = products.summed_in(accum_dtype, "gemm", operands)
    first, second, *addend = operands
    settings = products.settings_of(tile_shape, math)
    result: Tensor = products.gemm(first, second, addend[0] if addend else None, alpha, beta, settings)
    if tile_shape is not None:
        refuse_impossible(settings[0], first, second)
    result = result if narrow is None else result.to(narrow)
    return result if out is None and stream is None else result.eval(out, stream)


def flash_attention(
    q: object,
    k: object,
    v: object,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: object = None,
    stream: Stream | None = None,
) -> Tensor:
    """softmax(scale * q @ k^T + mask) @ v, formed without a matrix of scores in memory.

    `q` is [..., heads, len_q, d], `k` [..., heads_kv, len_k, d] and `v` [..., heads_kv, len_k, d_v], of one dtype;
    heads are a multiple of heads_kv, batch dimensions broadcast, and 2-D operands are one head. The result is
    [..., heads, len_q, d_v] in that dtype; scores, softmax and sums are formed in fp32 (fp64 of fp64).

    `scale` is 1 / sqrt(d) by default. `mask` broadcasts to [..., heads, len_q, len_k]: a bool one says which keys a
    query may attend to, a float one is added to the scores. With `causal` query i sees the keys
    j <= i + len_k - len_q, so that the last query sees all. A query without any key, or whose scores are all -inf,
    gives 0. Whether a value of a hidden key that is not finite shows is undefined.

    Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023), over the online softmax of Milakov and Gimelshein
    (2018).
    """
    queries, keys, values = (_node(operand) for operand in (q, k, v))
    offset = None if mask is None else _node(mask)
    return _on(calls.flash_attention(queries, keys, values, causal, scale, offset), stream)


def add(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a + b; of bools, their union."""
    return _binary("add", a, b, stream)


def sub(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a - b."""
    return _binary("sub", a, b, stream)


def mul(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a * b; of bools, their intersection."""
    return _binary("mul", a, b, stream)


def div(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a / b; integers give floats."""
    return _binary("div", a, b, stream)


def pow(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a ** b. Integers refuse a negative Python exponent."""
    first, _ = as_pair(a, b)
    return _on(algebra.power(first, b), stream)


def maximum(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The larger; NaN if either is NaN."""
    return _binary("maximum", a, b, stream)


def minimum(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """The smaller; NaN if either is NaN."""
    return _binary("minimum", a, b, stream)


def neg(x: object, stream: Stream | None = None) -> Tensor:
    """-x."""
    return _unary("neg", x, stream)


def abs(x: object, stream: Stream | None = None) -> Tensor:
    """|x|."""
    return _unary("abs", x, stream)


def clamp(x: object, min: object = None, max: object = None, *, stream: Stream | None = None) -> Tensor:
    """x within bounds, numbers or tensors; at least one of them. The upper one wins where they cross."""
    if min is None and max is None:
        raise ArgumentError("clamp needs a bound", hints=["min=, max=, or both"])
    return _on(bounds.clamp(_node(x), min, max), stream)


def where(condition: object, a: object, b: object, *, stream: Stream | None = None) -> Tensor:
    """a where the condition holds, else b; all three broadcast."""
    return _on(algebra.call("where", condition, a, b), stream)


def exp(x: object, stream: Stream | None = None) -> Tensor:
    """e ** x."""
    return _unary("exp", x, stream)


def log(x: object, stream: Stream | None = None) -> Tensor:
    """The natural logarithm."""
    return _unary("log", x, stream)


def sqrt(x: object, stream: Stream | None = None) -> Tensor:
    """The square root."""
    return _unary("sqrt", x, stream)


def rsqrt(x: object, stream: Stream | None = None) -> Tensor:
    """1 / sqrt(x)."""
    return _unary("rsqrt", x, stream)


def tanh(x: object, stream: Stream | None = None) -> Tensor:
    """The hyperbolic tangent."""
    return _unary("tanh", x, stream)


def sigmoid(x: object, stream: Stream | None = None) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _unary("sigmoid", x, stream)


def erf(x: object, stream: Stream | None = None) -> Tensor:
    """The error function."""
    return _unary("erf", x, stream)


def relu(x: object, stream: Stream | None = None) -> Tensor:
    """max(x, 0)."""
    return _unary("relu", x, stream)


def gelu(x: object, approximate: str = "none", *, stream: Stream | None = None) -> Tensor:
    """x Phi(x), with Phi the normal distribution; `approximate="tanh"` is its usual approximation."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate={approximate!r}", hints=['"none" or "tanh"'])
    return _on(unary(_GELU, (approximate,), _node(x)), stream)


def silu(x: object, stream: Stream | None = None) -> Tensor:
    """x sigmoid(x)."""
    return _unary("silu", x, stream)


def eq(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a == b, elementwise."""
    return _binary("eq", a, b, stream)


def ne(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a != b, elementwise."""
    return _binary("ne", a, b, stream)


def lt(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a < b."""
    return _binary("lt", a, b, stream)


def le(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a <= b."""
    return _binary("le", a, b, stream)


def gt(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a > b."""
    return _binary("gt", a, b, stream)


def ge(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a >= b."""
    return _binary("ge", a, b, stream)


def logical_and(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """Both; numbers count as true where they are not 0."""
    return _binary("logical_and", a, b, stream)


def logical_or(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """Either; numbers count as true where they are not 0."""
    return _binary("logical_or", a, b, stream)


def logical_not(x: object, stream: Stream | None = None) -> Tensor:
    """The opposite; numbers count as true where they are not 0."""
    return _unary("logical_not", x, stream)


def cast(x: object, dtype: object, *, stream: Stream | None = None) -> Tensor:
    """x in another dtype: floats to integers toward zero, to bool by comparison with 0."""
    return _on(_node(x).to(dtypes.dtype_of(dtype)), stream)


def sum(x: object, axis: Axis = None, keepdims: bool = False, *, stream: Stream | None = None) -> Tensor:
    """The sum along axes, all by default; integers and bools add up in int64."""
    return _on(_node(x).sum(axis, keepdims), stream)


def mean(x: object, axis: Axis = None, keepdims: bool = False, *, stream: Stream | None = None) -> Tensor:
    """The mean along axes, all by default, of floating-point elements."""
    return _on(_node(x).mean(axis, keepdims), stream)


def max(x: object, axis: Axis = None, keepdims: bool = False, *, stream: Stream | None = None) -> Tensor:
    """The maximum along axes, all by default; NaN if an element is."""
    return _on(_node(x).max(axis, keepdims), stream)


def min(x: object, axis: Axis = None, keepdims: bool = False, *, stream: Stream | None = None) -> Tensor:
    """The minimum along axes, all by default; NaN if an element is."""
    return _on(_node(x).min(axis, keepdims), stream)


def prod(x: object, axis: Axis = None, keepdims: bool = False, *, stream: Stream | None = None) -> Tensor:
    """The product along axes, all by default; integers and bools multiply in int64."""
    return _on(_node(x).prod(axis, keepdims), stream)


def argmax(x: object, axis: int | None = None, keepdims: bool = False, *, stream: Stream | None = None) -> Tensor:
    """The position (int64) of the first maximum along an axis, or in row-major order of the whole tensor; a NaN
    wins.
    """
    return _on(_node(x).argmax(axis, keepdims), stream)


def softmax(x: object, axis: int = -1, *, stream: Stream | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return _on(_node(x).softmax(axis), stream)


def log_softmax(x: object, axis: int = -1, *, stream: Stream | None = None) -> Tensor:
    """x - log(sum(exp(x))) along an axis."""
    return _on(calls.softmax("log_softmax", _node(x), axis), stream)


def layer_norm(
    x: object, weight: object = None, bias: object = None, eps: float = 1e-5, *, stream: Stream | None = None
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias along the last dimension; weight and bias have its extent."""
    scale, shift = (None if parameter is None else _node(parameter) for parameter in (weight, bias))
    return _on(calls.layer_norm(_node(x), scale, shift, eps), stream)


def rms_norm(x: object, weight: object = None, eps: float | None = 1e-6, *, stream: Stream | None = None) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight along the last dimension; `eps=None` is the dtype's machine epsilon."""
    return _on(calls.rms_norm(_node(x), None if weight is None else _node(weight), eps), stream)


def reshape(x: object, shape: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """The same elements, in row-major order, under another shape; one extent may be -1. A view where strides permit."""
    return _on(_node(x).reshape(shape), stream)


def transpose(x: object, permutation: Sequence[int] | None = None, *, stream: Stream | None = None) -> Tensor:
    """Dimension `d` of the result is dimension `permutation[d]`; without one the last two are exchanged."""
    node = _node(x)
    return _on(node.transpose() if permutation is None else views.transpose(node, permutation), stream)


def broadcast_to(x: object, shape: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """x repeated to `shape`."""
    return _on(_node(x).broadcast_to(shape), stream)


def concat(tensors: Sequence[object], axis: int = 0, *, stream: Stream | None = None) -> Tensor:
    """Tensors joined along an axis; all other extents agree."""
    return _on(calls.concat([_node(part) for part in tensors], axis), stream)
