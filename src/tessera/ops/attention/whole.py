"""Attention formed as a whole: the algebra of matrices of scores, of which gradients of gradients are made.

Heads that share keys and values are a dimension of their own there, which K and V have once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tessera.dtypes import accumulator, bool_
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.node import leaf_node
from tessera.ops.algebra import call, filled, literal, sum_to
from tessera.ops.contraction.records import transpose_last

N: TypeAlias = Any


def widened(x: N, dtype: Any) -> N:
    """An operand in the dtype of sums."""
    return x if x.dtype is dtype else call("cast", x, dtype=dtype)


def grouped(x: N, shared: int, lead: bool) -> N:
    """`[..., heads, length, size]` as `[..., shared, heads / shared, length, size]`; of K and V that is 1."""
    if not lead:
        return x
    *batch, heads, length, size = x.shape if len(x.shape) > 2 else (1, *x.shape)
    return call("reshape", x, shape=(*batch, shared, heads // max(shared, 1), length, size))


def hidden(scores: N, mask: N | None, causal: bool) -> N:
    """The scores with the mask applied."""
    lowest = literal(-math.inf, scores.dtype)
    if mask is not None:
        scores = call("where", mask, scores, lowest) if mask.dtype is bool_ else scores + mask
    if causal:
        queries, keys = scores.shape[-2:]
        seen = from_torch(torch.ones((queries, keys), dtype=torch.bool, device="cpu").tril(keys - queries))
        seen = on_device(seen, scores.structure.device or CPU)
        scores = call("where", leaf_node(seen), scores, lowest)
    return scores


def softmaxed(scores: N) -> N:
    """The softmax along keys; 0 for queries without any."""
    if 0 in scores.shape:
        return filled(0, scores)
    along = len(scores.shape) - 1
    blind = call("max", scores, axes=(along,), keepdims=True)
    blind = call("eq", blind, literal(-math.inf, scores.dtype))
    nothing = literal(0, scores.dtype)
    seen = call("where", blind, nothing, scores)  # the softmax of a blind row would be NaN, and so its gradient
    return call("where", blind, nothing, call("softmax", seen, axis=along))


def fitted(cotangent: N, operand: N, shared: int) -> N:
    """Summed over the heads that share an operand and over what it was broadcast along, in its dtype."""
    shape = operand.shape
    if len(cotangent.shape) == len(shape) == 2:
        return as_stored(cotangent, operand)
    *batch, heads, length, size = shape if len(shape) > 2 else (1, *shape)
    summed = sum_to(cotangent, (*batch, shared, heads // max(shared, 1), length, size))
    return as_stored(call("reshape", summed, shape=shape), operand)


def as_stored(x: N, like: N) -> N:
    """A cotangent in its operand's dtype."""
    return x if x.dtype is like.dtype else call("cast", x, dtype=like.dtype)


def full(x: N, batch: Sequence[int]) -> N:
    """An operand with a dimension of heads, and over all dimensions of batches."""
    own = x if len(x.shape) > 2 else call("reshape", x, shape=(1, *x.shape))
    shape = (*batch, *own.shape[-3:])
    return own if own.shape == shape else call("broadcast_to", own, shape=shape)


def row_sums(x: N) -> N:
    """Sums along the last dimension, which stays."""
    return call("sum", x, axes=(len(x.shape) - 1,), keepdims=True)


@dataclass(frozen=True)
class ScoreMatrix:
    """The masked scores of operands of full rank, `[..., shared, heads / shared, queries, keys]`, and what they are
    made of.
    """

    queries: N
    keys: N
    products: N
    masked: N
    operands: tuple[N, ...]
    """Q, K, the scale, and maybe a mask."""

    @classmethod
    def of(cls, q: N, k: N, scale: N, masks: Sequence[N], causal: bool) -> ScoreMatrix:
        """The scores of queries and keys."""
        shared, wide = k.shape[-3], accumulator(q.dtype)
        queries, keys = (grouped(widened(x, wide), shared, True) for x in (q, k))
        products = call("matmul", queries, transpose_last(keys))
        mask = None
        for each in masks:
            own = each if each.dtype in (bool_, wide) else call("cast", each, dtype=wide)
            mask = grouped(call("broadcast_to", own, shape=(*q.shape[:-1], k.shape[-2])), shared, True)
        return cls(queries, keys, products, hidden(products * scale, mask, causal), (q, k, scale, *masks))

    def grouped(self, x: N) -> N:
        """Another operand, of as many heads as queries or as keys, in the dtype of sums."""
        return grouped(widened(x, self.queries.dtype), self.operands[1].shape[-3], True)

    def fitted(self, cotangent: N, operand: N) -> N:
        """A cotangent as its operand lies, summed over heads that share it."""
        return fitted(cotangent, operand, self.operands[1].shape[-3])

    def weights(self, logarithms: N) -> N:
        """The softmax's weights by the logarithms of its sums; 0 for queries without any key."""
        found = self.grouped(logarithms)
        lowest, highest = (literal(sign * math.inf, found.dtype) for sign in (-1, 1))
        return call("exp", self.masked - call("where", call("eq", found, lowest), highest, found))

    def pulled_back(self, d_scores: N, more_q: N | None = None, more_k: N | None = None) -> tuple[N, N, list[N | None]]:
        """The cotangents of Q, of K, and of the scale and maybe a mask, by that of scores; `more_q` and `more_k` are
        added.
        """
        q, k, scale, *masks = self.operands
        d_q = call("matmul", d_scores, self.keys) * scale
        d_k = call("matmul", transpose_last(d_scores), self.queries) * scale
        d_q, d_k = (d if more is None else d + more for d, more in ((d_q, more_q), (d_k, more_k)))
        d_scale = None if scale.structure.weak else sum_to(d_scores * self.products, ())
        grid = (*q.shape[:-1], k.shape[-2])
        d_masks = [
            None if mask.dtype is bool_ else as_stored(sum_to(call("reshape", d_scores, shape=grid), mask.shape), mask)
            for mask in masks
        ]
        return self.fitted(d_q, q), self.fitted(d_k, k), [d_scale, *d_masks]

    def cotangent_of_mask(self, g: N, v: N, logarithms: N, mean: N) -> N:
        """The cotangent of a mask that is added, by that of the means of values `v`."""
        q, k, _, mask = self.operands
        products = call("matmul", self.grouped(g), transpose_last(self.grouped(v)))
        d_scores = self.weights(logarithms) * (products - self.grouped(mean))
        grid = (*q.shape[:-1], k.shape[-2])
        return as_stored(sum_to(call("reshape", d_scores, shape=grid), mask.shape), mask)
