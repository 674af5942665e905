"""Attention formed as a whole: the algebra of matrices of scores, of which gradients are made where no kernel forms
them block by block: gradients of gradients, and functions of scores without an elementwise derivative.

Heads that share keys and values are a dimension of their own there, which K and V have once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tessera.dtypes import accumulator
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.node import leaf_node
from tessera.ops.algebra import call, filled, literal, sum_to
from tessera.ops.attention import scoring
from tessera.ops.attention.derivatives import wide
from tessera.ops.attention.scoring import Scoring
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


def below_diagonal(scores: N) -> N:
    """The scores, -inf where a key comes after its query; the last query sees all keys."""
    queries, keys = scores.shape[-2:]
    seen = from_torch(torch.ones((queries, keys), dtype=torch.bool, device="cpu").tril(keys - queries))
    seen = on_device(seen, scores.structure.device or CPU)
    return call("where", leaf_node(seen), scores, literal(-math.inf, scores.dtype))


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
    """The scores of operands of full rank, what steps make of them, and what they are made of.

    `score` is [..., heads, queries, keys]; `products` and `changed`, what the softmax sees, have the heads that share
    keys as a dimension of their own, [..., shared, heads / shared, queries, keys].
    """

    queries: N
    keys: N
    products: N
    score: N
    steps: Sequence[N]
    changed: N
    operands: tuple[N, ...]
    """Q, K, the scale, and what the steps read beside the score."""
    scores: Scoring

    @classmethod
    def of(cls, q: N, k: N, scale: N, extras: Sequence[N], causal: bool, scores: Scoring) -> ScoreMatrix:
        """The scores of queries and keys."""
        shared, dtype = k.shape[-3], accumulator(q.dtype)
        queries, keys = (grouped(widened(x, dtype), shared, True) for x in (q, k))
        products = call("matmul", queries, transpose_last(keys))
        grid = (*q.shape[:-1], k.shape[-2])
        score = call("reshape", products * scale, shape=grid)
        steps = scoring.applied(scores, score, extras)
        changed = call("broadcast_to", scoring.last_of(steps, score), shape=grid)
        changed = grouped(below_diagonal(changed) if causal else changed, shared, True)
        return cls(queries, keys, products, score, steps, changed, (q, k, scale, *extras), scores)

    def grouped(self, x: N) -> N:
        """Another operand, of as many heads as queries or as keys, in the dtype of sums."""
        return grouped(widened(x, self.queries.dtype), self.operands[1].shape[-3], True)

    def apart(self, x: N) -> N:
        """What was made of `grouped` scores, [..., heads, queries, keys] again."""
        return call("reshape", x, shape=self.score.shape)

    def fitted(self, cotangent: N, operand: N) -> N:
        """A cotangent as its operand lies, summed over heads that share it."""
        return fitted(cotangent, operand, self.operands[1].shape[-3])

    def weights(self, logarithms: N) -> N:
        """The softmax's weights by the logarithms of its sums; 0 for queries without any key."""
        found = self.grouped(logarithms)
        lowest, highest = (literal(sign * math.inf, found.dtype) for sign in (-1, 1))
        return call("exp", self.changed - call("where", call("eq", found, lowest), highest, found))

    def derived(self, derivative: Scoring, d_changed: N) -> Derived:
        """What a derivative of the steps makes of the cotangent of what they give."""
        dtype = self.score.dtype
        beside = self.operands[3:]
        taken = wide([extra.dtype for extra in beside], dtype)
        extras = tuple([widened(extra, own) for extra, own in zip(beside, taken, strict=True)])
        operands = (*extras, self.apart(d_changed))
        return Derived(derivative, self.score, operands, scoring.applied(derivative, self.score, operands))

    def pulled_back(
        self, d_changed: N, more_q: N | None = None, more_k: N | None = None, more: tuple[N | None, ...] = ()
    ) -> tuple[N | None, N | None, list[N | None]]:
        """The cotangents of Q, of K, and of the scale and what the steps read beside the score, by that of `changed`;
        `more_q`, `more_k` and `more`, of the score and what is beside it, are added.
        """
        q, k, scale, *extras = self.operands
        last = scoring.last_of(self.steps, self.score)
        found = scoring.pulled_back(
            self.scores, sum_to(self.apart(d_changed), last.shape), self.score, extras, self.steps
        )
        parts = [found[0], *found[1]]
        parts = [plus(each, other) for each, other in zip(parts, more, strict=True)] if more else parts
        d_score, *d_extras = parts
        d_extras = [None if d is None else as_stored(d, extra) for d, extra in zip(d_extras, extras, strict=True)]
        d_q, d_k, d_scale = more_q, more_k, None
        if d_score is not None:
            d_scores = self.grouped(call("broadcast_to", d_score, shape=self.score.shape))
            d_q = plus(call("matmul", d_scores, self.keys) * scale, more_q)
            d_k = plus(call("matmul", transpose_last(d_scores), self.queries) * scale, more_k)
            d_scale = None if scale.structure.weak else sum_to(d_scores * self.products, ())
        fit_q, fit_k = (None if d is None else self.fitted(d, x) for d, x in ((d_q, q), (d_k, k)))
        return fit_q, fit_k, [d_scale, *d_extras]


@dataclass(frozen=True)
class Derived:
    """A derivative of steps, applied to a score, what is beside it, and the cotangent of what the steps give."""

    derivative: Scoring
    score: N
    operands: tuple[N, ...]
    steps: Sequence[N]

    @property
    def result(self) -> N:
        """What it gives, [..., heads, queries, keys]."""
        return scoring.last_of(self.steps, self.score)

    def pulled_back(self, cotangent: N) -> tuple[N | None, ...]:
        """The cotangents of the score, of what is beside it, and last of the cotangent that it was applied to."""
        arriving = sum_to(call("broadcast_to", cotangent, shape=self.score.shape), self.result.shape)
        d_score, rest = scoring.pulled_back(self.derivative, arriving, self.score, self.operands, self.steps)
        return d_score, *rest


def plus(a: N | None, b: N | None) -> N | None:
    """The sum of two cotangents, of which there may be none."""
    return b if a is None else a if b is None else a + b
