"""What the gradient of attention is made of: the logarithms of a softmax's sums, and cotangents by blocks.

    L[i]    = log(sum_j exp(S[i, j])),   S = scale Q K^T + mask            attention_logarithms
    P[i, j] = exp(S[i, j] - L[i]),   dS = P (g V^T - mean),   mean[i] = <g[i], out[i]>
    dS K,   dS^T Q,   P^T g                                                attention_dq, attention_dk, attention_dv

Kernels form P and dS again block by block, so that no matrix of scores is in memory: Dao, "FlashAttention-2" (2023),
algorithm 2. The first two lack the scale, by which they are multiplied as numbers are. Operands are those of
`flash_attention`, of full rank, L and mean are [..., heads, queries, 1]; sums are in the accumulator's dtype. A query
that sees no key has the logarithm -inf, and P is 0.

Their own gradients are formed out of other operators, with matrices of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch

from tessera.dtypes import DType, accumulator
from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, sum_to
from tessera.ops.attention import records
from tessera.ops.attention.whole import ScoreMatrix, full, row_sums
from tessera.ops.contraction.records import transpose_last
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register, shape_error

N: TypeAlias = Any
Of: TypeAlias = Literal["q", "k", "v"]

LOGARITHMS = "attention_logarithms"
LARGE_LOGARITHM = 2.0**16
"""Where a logarithm is larger, no weight is above 1: scores are beyond it by rounding alone, but by that much that
weights of fp32 would be some multiples of 1, up to infinity.
"""
COTANGENTS = {"q": "attention_dq", "k": "attention_dk", "v": "attention_dv"}


# -- rules ------------------------------------------------------------------------------------------------------------


def _sums(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    return accumulator(cast[0])


def _result_of_logarithms(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    shape, dtype = records.result(name, operands, cast, attributes)
    if len(operands[2].shape) < len(shape) or not operands[2].shape[-1]:
        raise shape_error(name, operands, "values have as many dimensions as the result, and elements")
    return (*shape[:-1], 1), accumulator(dtype)


def _dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Q, K, V and the cotangent of one dtype, all else but a mask in that of the sums. Raises DTypeError."""
    q, k, v, g, *numbers = operands
    mask = numbers[3:]
    if g.dtype is not q.dtype:
        raise dtype_error(name, operands, "the cotangent has the dtype of Q, K and V", ["cast it"])
    first = records.operand_dtypes(name, (q, k, v, numbers[2], *mask), attributes)
    return [*first[:3], q.dtype, *[accumulator(q.dtype)] * 3, *(each.dtype for each in mask)]


def _flops(count: int) -> Callable[..., int]:
    """Of products of queries, keys and the size of a head, over the keys that are seen."""

    def flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
        *heads, queries, size = operands[0].shape
        pairs = records.visible_pairs(queries, operands[1].shape[-2], attributes["causal"])
        return 2 * count * pairs * size * math.prod(heads)

    return flops


# -- references -------------------------------------------------------------------------------------------------------


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: torch.Tensor, masks: Sequence[torch.Tensor], causal: bool
) -> torch.Tensor:
    scores, _ = records.reference_products(q, k, k, scale)
    for mask in masks:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.where(records.causal_mask(*scores.shape[-2:]), scores, -math.inf) if causal else scores


def _logarithms(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: torch.Tensor,
    *masks: torch.Tensor,
    causal: bool,
) -> torch.Tensor:
    scores = _scores(q, k, scale, masks, causal)
    found = torch.logsumexp(scores, -1, keepdim=True)
    return found + torch.zeros((*v.shape[:-3], *(1,) * min(v.dim(), 3)))  # over the values' batches


def _one(*operands: torch.Tensor, causal: bool) -> float:
    """The logarithm of a sum of exponentials, of which the largest is 1."""
    return 1.0


def _cotangent(of: str) -> Callable[..., torch.Tensor]:
    def reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        logarithms: torch.Tensor,
        mean: torch.Tensor,
        scale: torch.Tensor,
        *masks: torch.Tensor,
        causal: bool,
    ) -> torch.Tensor:
        q, k, v, g = (x.to(logarithms.dtype) for x in (q, k, v, g))
        beyond = _scores(q, k, scale, masks, causal) - torch.where(logarithms.isinf(), math.inf, logarithms)
        weights = torch.exp(torch.where((beyond > 0) & (logarithms.abs() > LARGE_LOGARITHM), 0.0, beyond))
        group = q.shape[-3] // max(k.shape[-3], 1)

        def shared(x: torch.Tensor) -> torch.Tensor:
            summed: torch.Tensor = x.reshape(*x.shape[:-3], k.shape[-3], group, *x.shape[-2:]).sum(-3)
            return summed

        if of == "v":
            return shared(weights.mT @ g)
        d_scores = weights * (g @ v.repeat_interleave(group, -3).mT - mean)
        return d_scores @ k.repeat_interleave(group, -3) if of == "q" else shared(d_scores.mT @ q)

    return reference


# -- gradients --------------------------------------------------------------------------------------------------------


def _logarithms_gradient(g: N, operands: tuple[N, ...], out: N, *, causal: bool) -> tuple[N | None, ...]:
    """The softmax's weights, times the cotangent of their query."""
    q, k, _, scale, *masks = operands
    scores = ScoreMatrix.of(full(q, out.shape[:-3]), full(k, out.shape[:-3]), scale, masks, causal)
    d_q, d_k, rest = scores.pulled_back(scores.weights(out) * scores.grouped(g))
    return sum_to(d_q, q.shape), sum_to(d_k, k.shape), None, *rest


def _second_gradient(of: Of) -> Callable[..., tuple[N | None, ...]]:
    """Of a cotangent, by all that it is made of, as a whole."""

    def gradient(u: N, operands: tuple[N, ...], out: N, *, causal: bool) -> tuple[N | None, ...]:
        q, k, v, g, logarithms, mean, scale, *masks = operands
        scores = ScoreMatrix.of(q, k, scale, masks, causal)
        weights, own, above = scores.weights(logarithms), scores.grouped(u), scores.grouped(g)
        if of == "v":
            d_scores = call("matmul", above, transpose_last(own)) * weights
            d_q, d_k, rest = scores.pulled_back(d_scores)
            d_v, d_g, d_mean = None, call("matmul", weights, own), None
        else:
            values = scores.grouped(v)
            less = call("matmul", above, transpose_last(values)) - scores.grouped(mean)
            pair = (own, scores.keys) if of == "q" else (scores.queries, own)
            d_products = call("matmul", pair[0], transpose_last(pair[1])) * weights
            d_scores, direct = d_products * less, weights * less
            more = call("matmul", transpose_last(direct) if of == "q" else direct, own)
            d_q, d_k, rest = scores.pulled_back(d_scores, *((None, more) if of == "q" else (more, None)))
            d_v = scores.fitted(call("matmul", transpose_last(d_products), above), v)
            d_g = call("matmul", d_products, values)
            d_mean = scores.fitted(row_sums(d_products) * -1.0, mean)
        d_logarithms = scores.fitted(row_sums(d_scores) * -1.0, logarithms)
        return d_q, d_k, d_v, scores.fitted(d_g, g), d_logarithms, d_mean, *rest

    return gradient


# -- records ----------------------------------------------------------------------------------------------------------


def _body_of_logarithms(e: Emitter[V], q: V, k: V, v: V, scale: V, mask: V | None = None, *, causal: bool) -> V:
    return e.attend_logarithms(q, k, v, scale, mask, causal)


def _body_of(of: Of) -> Callable[..., Any]:
    def body(
        e: Emitter[V],
        q: V,
        k: V,
        v: V,
        g: V,
        logarithms: V,
        mean: V,
        scale: V,
        mask: V | None = None,
        *,
        causal: bool,
    ) -> V:
        return e.attend_back(of, q, k, v, g, logarithms, mean, scale, mask, causal)

    return body


register(
    Operator(
        name=LOGARITHMS,
        family="attention",
        arity=(4, 5),
        anchor=anchor_rules.attention_logarithms,
        operand_dtypes=records.operand_dtypes,
        result=_result_of_logarithms,
        flops=_flops(1),
        reference=_logarithms,
        gradient=_logarithms_gradient,
        body=_body_of_logarithms,
        attributes={"causal": False},
        terms=_one,
    )
)

_OF: tuple[Of, ...] = ("q", "k", "v")

for _of in _OF:
    register(
        Operator(
            name=COTANGENTS[_of],
            family="attention_gradient",
            arity=(7, 8),
            anchor=anchor_rules.attention_cotangent(_of),
            operand_dtypes=_dtypes,
            element=_sums,
            flops=_flops(2 if _of == "v" else 3),
            reference=_cotangent(_of),
            gradient=_second_gradient(_of),
            body=_body_of(_of),
            title="FlashAttnGrad",
            attributes={"causal": False},
        )
    )
