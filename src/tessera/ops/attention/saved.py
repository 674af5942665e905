"""Attention that is trained: with what its gradient needs, the logarithms of the softmax's sums, and that gradient.

    P[i, j] = exp(scale <q[i], k[j]> (+ mask[i, j]) - logarithms[i])      out[i] = sum_j P[i, j] v[j]
    dV = P^T g,   dS = P (g V^T - rowsum(g out)),   dQ = scale dS K,   dK = scale dS^T Q

Queries, keys and values are [batch, length, heads, size], all of one size, and logarithms [batch, length, heads]: so
torch has them in memory. Both are calls of torch's kernels of CPUs, which go block by block, so that no matrix of
scores is in memory (Dao, "FlashAttention-2", 2023, algorithms 1 and 2). With `causal` query i sees the keys j <= i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, accumulator, bool_
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal, sum_to
from tessera.ops.applications import products
from tessera.ops.contraction.records import transpose_last
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, dtype_error, shape_error

N: TypeAlias = Any

FORWARD = ("saved_attention", "saved_attention_logarithms")
BACKWARD = ("attention_dq", "attention_dk", "attention_dv")
ATTRIBUTES: Named = {"causal": False, "scale": 1.0}

_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_gradient_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


# -- rules ------------------------------------------------------------------------------------------------------------


def _dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    first = operands[0].dtype
    sums = 5 if name in BACKWARD else -1
    masks = operands[6 if name in BACKWARD else 3 :]
    wanted = [accumulator(first) if place == sums else first for place in range(len(operands) - len(masks))]
    found = [operand.dtype for operand in operands[: len(wanted)]]
    if first.kind != "float" or first.itemsize < 2 or found != wanted or any(m.dtype.kind == "int" for m in masks):
        raise dtype_error(name, operands, "operands have one floating-point dtype, logarithms that of its sums")
    return [*wanted, *(mask.dtype for mask in masks)]


def _parts(name: str, operands: Sequence[Typed]) -> tuple[Shape, Shape]:
    """The shapes of queries and of keys. Raises ShapeMismatchError."""
    shapes = [operand.shape for operand in operands]
    gradient = name in BACKWARD
    queries, keys, values = shapes[1:4] if gradient else shapes[:3]
    fit = len(queries) == len(keys) == 4 and keys == values and queries[3] > 0
    fit = fit and (queries[0], *queries[2:]) == (keys[0], *keys[2:])
    if gradient:
        fit = fit and shapes[0] == queries == shapes[4] and shapes[5] == queries[:3]
    for mask in shapes[6 if gradient else 3 :]:
        scores = (queries[0], queries[2], queries[1], keys[1])
        fit = fit and len(mask) == 4 and all(m in (1, s) for m, s in zip(mask, scores, strict=True))
    if not fit:
        raise shape_error(name, operands, "queries, keys and values are [batch, length, heads, size], all of one size")
    return queries, keys


def _result(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    queries, keys = _parts(name, operands)
    if name == FORWARD[1]:
        return queries[:3], accumulator(cast[0])
    return keys if name in BACKWARD[1:] else queries, cast[0]


def _products(count: int) -> Callable[..., int]:
    def flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
        queries, keys = operands[count // 5].shape, operands[count // 5 + 1].shape
        seen = queries[1] * keys[1] // (2 if attributes["causal"] else 1)
        return 2 * count * seen * queries[0] * queries[2] * queries[3]

    return flops


# -- calls ------------------------------------------------------------------------------------------------------------


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, length, size], whose elements torch's kernels walk one by one."""
    turned = x.transpose(1, 2)
    return turned if x.ndim < 4 or turned.stride(-1) == 1 else turned.contiguous()


def _options(masks: Sequence[torch.Tensor], attributes: Named, dtype: torch.dtype) -> dict[str, Any]:
    (mask,) = masks or (None,)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -math.inf)
    return {"attn_mask": mask, "scale": attributes["scale"]}


def _forward(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    if not outputs[0].numel() or not inputs[1].numel():
        for output, value in zip(outputs, (0.0, -math.inf), strict=True):
            output.fill_(value)
        return
    options = _options(inputs[3:], attributes, inputs[0].dtype)
    found = _kernel(*map(_heads_first, inputs[:3]), 0.0, attributes["causal"], **options)
    for output, each in zip(outputs, found, strict=True):
        output.copy_(each.transpose(1, 2))


def _backward(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    if not inputs[0].numel() or not inputs[2].numel():
        for output in outputs:
            output.zero_()
        return
    options = _options(inputs[6:], attributes, inputs[0].dtype)
    found = _gradient_kernel(*map(_heads_first, inputs[:6]), 0.0, attributes["causal"], **options)
    for output, each in zip(outputs, found, strict=True):
        output.copy_(each.transpose(1, 2))


# -- references -------------------------------------------------------------------------------------------------------


def _reference_scores(
    q: torch.Tensor, k: torch.Tensor, masks: Sequence[torch.Tensor], causal: bool, scale: float
) -> torch.Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    for mask in masks:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.where(torch.ones(scores.shape[-2:]).tril() > 0, scores, -math.inf) if causal else scores


def _means(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    weights = torch.softmax(_reference_scores(q, k, masks, causal, scale), -1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def _logarithms(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    return torch.logsumexp(_reference_scores(q, k, masks, causal, scale), -1).transpose(1, 2)


def _cotangent(place: int) -> Callable[..., torch.Tensor]:
    def reference(
        g: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        logarithms: torch.Tensor,
        *masks: torch.Tensor,
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        scores = _reference_scores(q, k, masks, causal, scale)
        weights = torch.exp(scores - logarithms.transpose(1, 2)[..., None])
        if place == 2:
            return torch.einsum("bhij,bihd->bjhd", weights, g)
        mean = (g * out).sum(-1).transpose(1, 2)[..., None]
        d_scores = weights * (torch.einsum("bihd,bjhd->bhij", g, v) - mean) * scale
        return torch.einsum("bhij,bjhd->bihd" if place == 0 else "bhij,bihd->bjhd", d_scores, (k, q)[place])

    return reference


# -- gradients --------------------------------------------------------------------------------------------------------


def _turned(x: N) -> N:
    """[batch, length, heads, ...] as [batch, heads, length, ...], and back."""
    return call("transpose", x, permutation=(0, 2, 1, *range(3, len(x.shape))))


def _wide(x: N) -> N:
    dtype = accumulator(x.dtype)
    return _turned(x if x.dtype is dtype else call("cast", x, dtype=dtype))


def _scores(q: N, k: N, masks: Sequence[N], causal: bool, scale: float) -> N:
    """The masked scores of heads that come first."""
    scores = call("matmul", q, transpose_last(k)) * scale
    lowest = literal(-math.inf, scores.dtype)
    for mask in masks:
        scores = call("where", mask, scores, lowest) if mask.dtype is bool_ else scores + mask
    if causal:
        queries, keys = (call("iota", shape=(extent,)) for extent in scores.shape[-2:])
        scores = call("where", call("ge", _column(queries), keys), scores, lowest)
    return scores


def _column(x: N) -> N:
    return call("reshape", x, shape=(*x.shape, 1))


def _row_sums(x: N) -> N:
    return call("sum", x, axes=(len(x.shape) - 1,), keepdims=True)


def _fitted(found: Sequence[N | None], operands: Sequence[N]) -> tuple[N, ...]:
    """Cotangents of heads first, as their operands lie and in their dtypes."""
    turned = [each if each is None else _turned(each) for each in found]
    pairs = zip(turned, operands, strict=True)
    return tuple(x if x is None or x.dtype is y.dtype else call("cast", x, dtype=y.dtype) for x, y in pairs)


def _mask_cotangents(d_scores: N, masks: Sequence[N]) -> tuple[N | None, ...]:
    return tuple(
        None if mask.dtype is bool_ else call("cast", sum_to(d_scores, mask.shape), dtype=mask.dtype) for mask in masks
    )


def _forward_gradient(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[N, ...]:
    """Of the means: by the kernel of gradients; a mask's, which it does not give, as a whole."""
    q, k, v, *masks = operands
    logarithms = call(FORWARD[1], *operands, **attributes)
    found = [call(name, g, q, k, v, out, logarithms, *masks, **attributes) for name in BACKWARD]
    if not any(mask.dtype is not bool_ for mask in masks):
        return (*found, *(None for _ in masks))
    wide = [_wide(x) for x in (q, k, v, g, out)]
    weights = call("exp", _scores(wide[0], wide[1], masks, **attributes) - _column(_turned(logarithms)))
    d_weights = call("matmul", wide[3], transpose_last(wide[2]))
    return (*found, *_mask_cotangents(weights * (d_weights - _row_sums(wide[3] * wide[4])), masks))


def _logarithms_gradient(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[N | None, ...]:
    """The softmax's weights, times the cotangent of their query."""
    q, k, v, *masks = operands
    wide_q, wide_k, scale = _wide(q), _wide(k), attributes["scale"]
    weights = call("exp", _scores(wide_q, wide_k, masks, **attributes) - _column(_turned(out)))
    d_scores = weights * _column(_turned(g))
    found = [call("matmul", d_scores, wide_k) * scale, call("matmul", transpose_last(d_scores), wide_q) * scale, None]
    return (*_fitted(found, (q, k, v)), *_mask_cotangents(d_scores, masks))


def _second_gradient(place: int) -> Callable[..., tuple[N | None, ...]]:
    """Of the cotangent of queries, keys or values, by all that it is made of, as a whole."""

    def gradient(u: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[N | None, ...]:
        *main, logarithms = operands[:6]
        masks, scale = operands[6:], attributes["scale"]
        g, q, k, v, result = map(_wide, main)
        u = _wide(u)
        weights = call("exp", _scores(q, k, masks, **attributes) - _column(_turned(logarithms)))
        found: list[N | None] = [None] * 5
        if place == 2:
            d_weights = call("matmul", g, transpose_last(u))
            found[0] = call("matmul", weights, u)
        else:
            products = call("matmul", g, transpose_last(v))
            less = products - _row_sums(g * result)
            inner = call("matmul", u, transpose_last(k)) if place == 0 else call("matmul", q, transpose_last(u))
            d_weights = inner * less * scale
            d_products = inner * weights * scale
            d_mean = _row_sums(d_products) * -1.0
            found[0] = call("matmul", d_products, v) + d_mean * result
            found[3] = call("matmul", transpose_last(d_products), g)
            found[4] = d_mean * g
            first = weights * less * scale
            direct = call("matmul", transpose_last(first) if place == 0 else first, u)
            found[2 if place == 0 else 1] = direct
        d_scores = d_weights * weights
        for at, product in ((1, call("matmul", d_scores, k)), (2, call("matmul", transpose_last(d_scores), q))):
            known = found[at]
            found[at] = product * scale if known is None else known + product * scale
        sums = call("reshape", _row_sums(d_scores) * -1.0, shape=d_scores.shape[:3])
        return (*_fitted([*found, sums], operands[:6]), *_mask_cotangents(d_scores, masks))

    return gradient


# -- records ----------------------------------------------------------------------------------------------------------

for _name, _reference, _gradient in (
    (FORWARD[0], _means, _forward_gradient),
    (FORWARD[1], _logarithms, _logarithms_gradient),
):
    define(
        _name,
        _forward,
        ATTRIBUTES,
        arity=(3, 4),
        operand_dtypes=_dtypes,
        result=_result,
        flops=_products(2),
        reference=_reference,
        gradient=_gradient,
        application=products.of_saved_attention,
        joint=FORWARD,
    )

for _place, _name in enumerate(BACKWARD):
    define(
        _name,
        _backward,
        ATTRIBUTES,
        arity=(6, 7),
        operand_dtypes=_dtypes,
        result=_result,
        flops=_products(5),
        reference=_cotangent(_place),
        gradient=_second_gradient(_place),
        application=products.of_attention_gradients,
        joint=BACKWARD,
    )
