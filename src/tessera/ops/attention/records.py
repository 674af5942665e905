"""Scaled dot-product attention: `flash_attention`.

    scores[i, j] = scale * <q[i], k[j]>  (+ mask[i, j], or -inf where a key is hidden from a query)
    result[i]    = sum_j softmax(scores[i])[j] v[j]

Vaswani et al., "Attention Is All You Need" (2017). Kernels form the softmax online, block after block of keys, so that
no matrix of scores goes through memory: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), Dao
et al., "FlashAttention" (2022), Dao, "FlashAttention-2" (2023).

With `causal` the last query sees all keys: query i sees the keys j <= i + len_k - len_q. A query that sees no key, or
whose scores are all -inf, gives 0. What a hidden key's value holds does not matter as long as it is finite.

The record takes scales that are not negative; `calls` turns Q around where one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, accumulator
from tessera.ir.anchors import rules as anchor_rules
from tessera.ir.anchors.anchor import AnchorError
from tessera.lazy.structures.structure import Shape
from tessera.ops.attention.gradients import attention_gradient
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, elements, register, shape_error

N: TypeAlias = Any

NAME = "flash_attention"


# -- rules ------------------------------------------------------------------------------------------------------------


def _tensors(operands: Sequence[Typed]) -> list[Typed]:
    """The operands that a user thinks of as tensors: all but the scale."""
    return [operand for index, operand in enumerate(operands) if index != 3]


def operand_dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Q, K and V of one dtype, the scale in that of the sums, and a mask as it is. Raises DTypeError."""
    q, k, v, _, *mask = operands
    shown = _tensors(operands)
    if q.dtype.kind != "float" or not q.dtype is k.dtype is v.dtype:
        raise dtype_error(name, shown, "Q, K and V have one floating-point dtype", ["cast them to one dtype"])
    if any(operand.dtype.kind == "int" for operand in mask):
        hints = ["a bool mask says which keys a query may attend to, a float mask is added to the scores"]
        raise dtype_error(name, shown, "a mask is of bool or of a floating-point dtype", hints)
    return [q.dtype, k.dtype, v.dtype, accumulator(q.dtype), *(operand.dtype for operand in mask)]


def _heads(shape: Shape) -> int:
    return shape[-3] if len(shape) > 2 else 1


def result(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    """A mean of values for each query. Raises ShapeMismatchError."""
    shapes = [operand.shape for operand in operands]
    try:
        shape = anchor_rules.attention(tuple(map(len, shapes)), attributes).shape(shapes)
    except AnchorError as error:
        raise shape_error(name, _tensors(operands), error.message) from None
    return tuple([extent for extent in shape if extent is not None]), cast[0]


def visible_pairs(queries: int, keys: int, causal: bool) -> int:
    """Pairs of a query and a key that it sees, in one head: with `causal` query i sees i + 1 + keys - queries."""
    if not causal:
        return queries * keys
    first = 1 + keys - queries
    hidden = min(max(1 - first, 0), queries)  # queries before the first that sees a key
    seeing = queries - hidden
    return seeing * (max(first, 1) + keys) // 2 if seeing else 0


def flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """Of the two products alone, over the keys that are seen: so the literature counts attention (Dao 2023, section
    4.1), and so its figures compare. The softmax takes five operations a score more.
    """
    queries, head = operands[0].shape[-2:]
    keys, value_head = operands[2].shape[-2:]
    pairs = visible_pairs(queries, keys, attributes["causal"])
    return 2 * pairs * (head + value_head) * elements(result.shape[:-2])


# -- reference --------------------------------------------------------------------------------------------------------


def causal_mask(queries: int, keys: int) -> torch.Tensor:
    """Which key each query sees, `[queries, keys]`: the last query sees them all."""
    return torch.ones((queries, keys), dtype=torch.bool).tril(keys - queries)


def _reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool,
) -> torch.Tensor:
    scores, v = reference_products(q, k, v, scale)
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if causal:
        scores = torch.where(causal_mask(*scores.shape[-2:]), scores, float("-inf"))
    return reference_means(scores, v)


def reference_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scaled scores, and the values, of as many heads as there are of queries."""
    heads, shared = _heads(q.shape), _heads(k.shape)
    if heads != shared and k.dim() > 2:
        k, v = (x.repeat_interleave(heads // shared, -3) for x in (k, v))
    return q @ k.mT * scale, v


def reference_means(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The values' means by the softmax of scores; 0, with no gradient, where all of them are -inf."""
    blind = (scores == float("-inf")).all(-1, keepdim=True)
    seen = torch.where(blind, 0.0, scores)  # the softmax of a blind row, and with it the gradient, would be NaN
    return torch.where(blind, 0.0, torch.softmax(seen, -1)) @ v


# -- body -------------------------------------------------------------------------------------------------------------


def _body(e: Emitter[V], q: V, k: V, v: V, scale: V, mask: V | None = None, *, causal: bool) -> V:
    return e.attend(q, k, v, scale, mask, causal)


FLASH_ATTENTION = register(
    Operator(
        name=NAME,
        family="attention",
        arity=(4, 5),
        operand_dtypes=operand_dtypes,
        result=result,
        flops=flops,
        reference=_reference,
        gradient=attention_gradient,
        body=_body,
        title="FlashAttn",
        attributes={"causal": False},
    )
)
