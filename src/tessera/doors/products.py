"""Matrix products, constant weights, and products of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy
import torch

from tessera import dtypes
from tessera.compiler.trace.tiles import refuse_impossible
from tessera.compiler.trace.tracing import TracedFunction
from tessera.doors.calls.joint import joint
from tessera.doors.calls.nodes import call, node, on
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy import issuing
from tessera.lazy.attached import detached
from tessera.lazy.leaves.constants import constant_leaf
from tessera.lazy.leaves.conversion import as_pair
from tessera.lazy.leaves.leaf import Attached, Placeholder
from tessera.lazy.node import leaf_node
from tessera.lazy.promise import settle
from tessera.ops.contraction import calls as products
from tessera.ops.layout import views
from tessera.ops.rows import calls
from tessera.ops.rows.calls import Axis
from tessera.runtime.streams.stream import Stream
from tessera.sharding.tensors.making import constants
from tessera.typing import ArrayLike, DTypeLike

Output: TypeAlias = torch.Tensor | numpy.ndarray[Any, Any]

MOST = 127
"""The largest quantized number: -128 is left out, so that a number and its negative are quantized alike."""


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tile_shape: Sequence[int] | None = None,
    accum_dtype: DTypeLike | None = None,
    math: str | None = None,
    out: Output | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """`a @ b`, batched and broadcast as in torch; operands may be transposed views.

    `tile_shape` asks for a tile (BM, BN, BK), which is refused if no kernel can have it; `math="tf32"` permits rounded
    products. `accum_dtype` is the dtype of products and sums: fp32 (of fp32 and narrower) or fp64; the result's dtype
    stays. With `out` the product is computed at once (or on `stream`), into that memory. Mixed dtypes: the result has
    the wider one; of fp8_e4m3 and fp8_e5m2, neither of which is, that of the sums, fp32.

    Shapes: a [..., M, K] and b [..., K, N] give [..., M, N]; [K] is a row of a, a column of b. Dtypes: floats, 8-bit
    floats and complex; int8, uint8, int16 and int32 give int32; int64 gives int64; not bools (E_DTYPE). Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) where K differs, ScheduleError (E_SCHEDULE_ILLEGAL) for a `tile_shape` that
    cannot be.

    >>> op.matmul(op.tensor([[1, 2], [3, 4]]), op.tensor([[1], [1]])).tolist()
    [[3], [7]]
    >>> op.matmul(op.ones((8, 2, 3)), op.ones((3, 4))).shape
    (8, 2, 4)
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
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    tile_shape: Sequence[int] | None = None,
    accum_dtype: DTypeLike | None = None,
    math: str | None = None,
    out: Output | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """`alpha * (a @ b) + beta * c`; `c` broadcasts to the product, and is not read where `beta` is 0. Else as
    `matmul`. Raises ArgumentError (E_ARGUMENT) where integers would be scaled by a fraction.

    Shapes: a [..., M, K] and b [..., K, N] give [..., M, N], to which c broadcasts. Dtypes: floats and 8-bit floats;
    int8, uint8, int16 and int32 give int32; int64 gives int64; not bools and complex (E_DTYPE).

    >>> op.gemm(op.ones((2, 3)), op.ones((3, 2)), op.ones(2), alpha=2.0, beta=-1.0).tolist()
    [[5.0, 5.0], [5.0, 5.0]]
    """
    operands: Sequence[Any] = as_pair(a, b) if c is None else (*as_pair(a, b), node(c))
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


def grouped_matmul(x: ArrayLike, weights: ArrayLike, sizes: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The rows of x times one of several matrices: the first `sizes[0]` rows times `weights[0]`, the next `sizes[1]`
    times `weights[1]`, and so on; rows behind the last group give zeros. Experts of a mixture are such groups.

    Computed by torch's library, in one step. Shapes: x [T, K], weights [E, K, N] and sizes [E] give [T, N]. Dtypes:
    floats; not 8-bit floats, integers, bools and complex (E_DTYPE). Raises IndexRangeError (E_INDEX)
    for sizes that do not fit when it is evaluated, ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> op.grouped_matmul(op.ones((3, 2)), op.tensor([[[1.0], [1.0]], [[2.0], [2.0]]]), op.tensor([1, 2])).tolist()
    [[2.0], [4.0], [4.0]]
    """
    return on(call("grouped_matmul", node(x), node(weights), node(sizes)), stream)


def constant(x: ArrayLike) -> Tensor:
    """`x` as a tensor whose contents stay, the weights of a layer for example: products may keep a copy of it in the
    layout that their kernels read fastest, made at the first use and kept as long as `x` lives.

    `x` is a torch tensor, a numpy array or a Tessera tensor, which is evaluated. Views of the result (`w.T`), and
    constants made of the same tensor, share the copies. A torch tensor may be changed in place: the next evaluation
    reads the new contents. Of a numpy array, which does not tell that it was written to, a constant has the elements
    that it holds now, in a copy, unless it is read-only (`array.setflags(write=False)`): what is written later counts
    from the next `op.constant(array)` on, which copies and packs anew only what has changed. Of a tensor on a mesh each
    device's shard is a constant of its own. Raises ArgumentError (E_ARGUMENT) for the argument of a function that is
    being traced, MemoryLimitError (E_MEMORY_LIMIT) where there is no memory for the copy.

    Shapes: x of any shape; the result has it.

    >>> op.constant(op.ones((2, 3))).shape
    (2, 3)
    """
    given = node(x)
    if any(isinstance(leaf, Placeholder) for leaf in given.leaves):
        raise ArgumentError(
            "constant() of an argument of a function that is being traced: its contents are not known there",
            hints=["pass op.constant(w) to the function", "or mark a tensor from around it"],
        )
    (leaf,) = given.eval().leaves
    if type(leaf) is Attached:
        raise detached()
    settle((leaf,))
    return cast(Tensor, leaf_node(constant_leaf(leaf) if leaf.structure.layout is None else constants(leaf)))


def quantize(x: ArrayLike, axis: Axis = None, *, stream: Stream | None = None) -> tuple[Tensor, Tensor]:
    """`x` as int8 numbers and the fp32 scale that they share along `axis`: `x` is about `numbers * scale`.

    The scale is the largest magnitude over 127; with `axis` (one or several) it has an element for each index of the
    other dimensions, without one it is one number. Rounding is to the nearest, ties to even, so that the error is at
    most half a scale. All zeros have the scale 1; where `x` has a NaN or an infinity, the scale is not finite.
    Evaluating either result evaluates both. Raises DTypeError (E_DTYPE) for what is no float.

    Shapes: x of any shape; the numbers have it, the scale lacks `axis`. Dtypes: floats and 8-bit floats give int8; not
    integers, bools and complex (E_DTYPE).

    >>> numbers, scale = op.quantize(op.tensor([[1.0, -2.0]]), axis=-1)
    >>> numbers.tolist(), scale.shape
    ([[64, -127]], (1,))
    """
    numbers, scale = _quantized(node(x), axis, keepdims=False)
    if stream is not None:
        issuing.issue_all([numbers, scale], stream)
        return numbers, scale
    numbers, scale = joint([numbers, scale])
    return numbers, scale


def _quantized(x: Tensor, axis: Axis, keepdims: bool) -> tuple[Tensor, Tensor]:
    if x.dtype.kind != "float":
        raise DTypeError(f"quantize of {tuple(x.shape)} {x.dtype}: floats are quantized", hints=['x.to("fp32")'])
    wide = x.to("fp32")
    largest = cast(Tensor, calls.reduction("max", call("abs", wide), axis, True))
    share = largest / MOST  # denormal, or 0, where all numbers are: what is left of them may not fit
    scale = call("where", call("eq", share, 0.0), 1.0, share)
    numbers = call("clamp", call("round", wide / scale), minimum=-float(MOST), maximum=float(MOST)).to("int8")
    if keepdims:
        return numbers, scale
    shape = calls.reduction("max", wide, axis, False).shape
    return numbers, cast(Tensor, views.reshape(scale, shape))


def int8_linear(
    x: ArrayLike,
    weight: ArrayLike,
    weight_scale: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """`x @ weight.T * weight_scale + bias` with the rows of `x` quantized on the way: a product of bytes, summed
    exactly in int32, scaled in fp32 and rounded once to the dtype of `x`.

    `x` [..., K] of floats; `weight` [N, K] of int8, best an `op.constant`; `weight_scale` [N] or one number, as
    `op.quantize(w, axis=-1)` gives them; `bias` [N]. Sums are those of int32, modulo 2**32: they cannot overflow up to
    K = 133,152 (`127 * 127 * K < 2**31`). Raises ShapeMismatchError (E_SHAPE_MISMATCH) and DTypeError (E_DTYPE).

    Shapes: x [..., K] and weight [N, K] give [..., N]. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> w, scale = op.quantize(op.ones((4, 3)), axis=-1)
    >>> op.int8_linear(op.ones((2, 3)), w, scale).shape
    (2, 4)
    """
    rows, weights = node(x), node(weight)
    if weights.dtype is not dtypes.int8:
        raise DTypeError(f"int8_linear with weights of {weights.dtype}", hints=["op.quantize(weight, axis=-1)"])
    if weights.ndim != 2 or not rows.ndim or rows.shape[-1] != weights.shape[1]:
        raise ShapeMismatchError(
            f"int8_linear of {tuple(rows.shape)} and weights {tuple(weights.shape)}: [..., K] and [N, K] are meant"
        )
    scales = node(weight_scale)
    if tuple(scales.shape) not in ((), (weights.shape[0],)):
        raise ShapeMismatchError(
            f"int8_linear with {weights.shape[0]} rows of weights and scales of shape {tuple(scales.shape)}",
            hints=["op.quantize(weight, axis=-1) gives a scale for each row"],
        )
    made = _SCALED(rows, weights, scales) if bias is None else _BIASED(rows, weights, scales, node(bias))
    return on(made, stream)


def _scaled(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return _sums(x, weight, scales).to(x.dtype)


def _biased(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
    return (_sums(x, weight, scales) + bias).to(x.dtype)


def _sums(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    numbers, scale = _quantized(x, -1, keepdims=True)
    sums = cast(Tensor, products.matmul(numbers, views.swapped(weight)))
    return sums.to("fp32") * scale * scales.to("fp32")


# Traced, since a dozen operators take longer to write down than a row by a small layer to compute.
_SCALED, _BIASED = TracedFunction(_scaled), TracedFunction(_biased)
