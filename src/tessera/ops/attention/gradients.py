"""The gradient of attention, out of other operators.

Where torch's kernel of gradients takes the operands (`saved.py`), it forms the weights block by block (Dao et al. 2022,
algorithm 4). Elsewhere, with masks and heads that share keys, they are formed anew and as a whole, which takes memory
for several matrices of scores.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from tessera.dtypes import accumulator, bool_
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.node import leaf_node
from tessera.ops.algebra import call, filled, literal, sum_to
from tessera.ops.attention import scoring
from tessera.ops.attention.scoring import Scoring
from tessera.ops.contraction.records import transpose_last

N: TypeAlias = Any


def attention_gradient(
    g: N, operands: tuple[N, ...], out: N, *, causal: bool
) -> tuple[N, N, N, N | None] | tuple[N, N, N, N | None, N | None]:
    """With P = softmax(S), S = scale Q K^T + mask: dV = P^T g, dS = P (g V^T - rowsum(g V^T P)), dQ = scale dS K,
    dK = scale dS^T Q, and the sums of dS for the mask and of dS Q K^T for the scale (Dao et al. 2022, appendix B.2).

    Heads that share keys and values are a dimension of their own, over which dK and dV are summed.
    """
    q, k, v, scale, *masks = operands
    if not masks and scale.structure.weak and _goes_by_blocks(q, k, v, causal):
        return _by_blocks(g, q, k, v, scale, out, causal)
    wide = accumulator(q.dtype)
    shared = k.shape[-3] if len(k.shape) > 2 else 1
    lead = len(out.shape) > 2
    queries, keys, values = (_grouped(_widened(x, wide), shared, lead) for x in (q, k, v))
    above = _grouped(_widened(g, wide), shared, lead)
    products = call("matmul", queries, transpose_last(keys))
    scores, mask = products * scale, masks[0] if masks else None
    grid = (*out.shape[:-1], k.shape[-2])
    grouped_mask = None
    if mask is not None:
        own = mask if mask.dtype in (bool_, wide) else call("cast", mask, dtype=wide)
        grouped_mask = _grouped(call("broadcast_to", own, shape=grid), shared, lead)
    weights = _weights(_hidden(scores, grouped_mask, causal))
    d_weights = call("matmul", above, transpose_last(values))
    along = len(weights.shape) - 1
    mean = call("sum", d_weights * weights, axes=(along,), keepdims=True)
    d_scores = weights * (d_weights - mean)
    d_queries = call("matmul", d_scores, keys) * scale
    d_keys = call("matmul", transpose_last(d_scores), queries) * scale
    d_values = call("matmul", transpose_last(weights), above)
    found = [_fitted(d, x, shared) for d, x in ((d_queries, q), (d_keys, k), (d_values, v))]
    d_scale = None if scale.structure.weak else sum_to(d_scores * products, ())
    if mask is None:
        return found[0], found[1], found[2], d_scale
    d_mask = None
    if mask.dtype is not bool_:
        d_mask = _in(sum_to(call("reshape", d_scores, shape=grid), mask.shape), mask)
    return found[0], found[1], found[2], d_scale, d_mask


def scored_gradient(g: N, operands: tuple[N, ...], out: N, *, scores: Scoring) -> tuple[N | None, ...]:
    """The same where steps change the scores: dS goes back through their gradients, to the product, and to what the
    steps read beside it.
    """
    q, k, v, scale, *extras = operands
    wide = accumulator(q.dtype)
    shared = k.shape[-3] if len(k.shape) > 2 else 1
    lead = len(out.shape) > 2
    queries, keys, values = (_grouped(_widened(x, wide), shared, lead) for x in (q, k, v))
    above = _grouped(_widened(g, wide), shared, lead)
    products = call("matmul", queries, transpose_last(keys))
    grid = (*out.shape[:-1], k.shape[-2])
    score = call("reshape", products * scale, shape=grid)
    steps = scoring.applied(scores, score, extras)
    changed = scoring.last_of(steps, score)
    weights = _weights(_grouped(call("broadcast_to", changed, shape=grid), shared, lead))
    d_weights = call("matmul", above, transpose_last(values))
    mean = call("sum", d_weights * weights, axes=(len(weights.shape) - 1,), keepdims=True)
    d_changed = call("reshape", weights * (d_weights - mean), shape=grid)
    d_score, d_extras = scoring.pulled_back(scores, sum_to(d_changed, changed.shape), score, extras, steps)
    d_values = _fitted(call("matmul", transpose_last(weights), above), v, shared)
    if d_score is None:  # the score does not decide anything
        return None, None, d_values, None, *d_extras
    d_scores = _grouped(d_score, shared, lead)
    d_queries = call("matmul", d_scores, keys) * scale
    d_keys = call("matmul", transpose_last(d_scores), queries) * scale
    d_scale = None if scale.structure.weak else sum_to(d_scores * products, ())
    return _fitted(d_queries, q, shared), _fitted(d_keys, k, shared), d_values, d_scale, *d_extras


def _goes_by_blocks(q: N, k: N, v: N, causal: bool) -> bool:
    """Whether torch's kernel takes the operands: on CPUs, keys and values of as many heads as queries, of one size."""
    (*lead, queries, size), keys = q.shape, k.shape[-2]
    fit = k.shape == v.shape == (*lead, keys, size) and len(lead) <= 2 and 0 not in (*q.shape, keys)
    aligned = not causal or queries == keys
    return fit and aligned and q.dtype is accumulator(q.dtype) and (q.structure.device or CPU) == CPU


def _by_blocks(g: N, q: N, k: N, v: N, scale: N, out: N, causal: bool) -> tuple[N, N, N, None]:
    """The cotangents by torch's kernel, of queries that are scaled before."""

    def turned(x: N) -> N:
        whole = call("reshape", x, shape=(*(1,) * (4 - len(x.shape)), *x.shape))
        return call("transpose", whole, permutation=(0, 2, 1, 3))

    operands = turned(q * scale), turned(k), turned(v)
    attributes = {"causal": causal, "scale": 1.0}
    logarithms = call("saved_attention_logarithms", *operands, **attributes)
    found = [
        call(
            "transpose",
            call(name, turned(g), *operands, turned(out), logarithms, **attributes),
            permutation=(0, 2, 1, 3),
        )
        for name in ("attention_dq", "attention_dk", "attention_dv")
    ]
    dq, dk, dv = (call("reshape", each, shape=x.shape) for each, x in zip(found, (q, k, v), strict=True))
    return dq * scale, dk, dv, None


def _widened(x: N, dtype: Any) -> N:
    return x if x.dtype is dtype else call("cast", x, dtype=dtype)


def _grouped(x: N, shared: int, lead: bool) -> N:
    """`[..., heads, length, size]` as `[..., shared, heads / shared, length, size]`; of K and V that is 1."""
    if not lead:
        return x
    *batch, heads, length, size = x.shape if len(x.shape) > 2 else (1, *x.shape)
    return call("reshape", x, shape=(*batch, shared, heads // max(shared, 1), length, size))


def _hidden(scores: N, mask: N | None, causal: bool) -> N:
    """The scores with the mask applied."""
    lowest = literal(-math.inf, scores.dtype)
    if mask is not None:
        scores = call("where", mask, scores, lowest) if mask.dtype is bool_ else scores + mask
    if causal:
        queries, keys = scores.shape[-2:]
        seen = from_torch(torch.ones((queries, keys), dtype=torch.bool).tril(keys - queries))
        seen = on_device(seen, scores.structure.device or CPU)
        scores = call("where", leaf_node(seen), scores, lowest)
    return scores


def _weights(scores: N) -> N:
    """The softmax along keys; 0 for queries without any."""
    if 0 in scores.shape:
        return filled(0, scores)
    along = len(scores.shape) - 1
    blind = call("max", scores, axes=(along,), keepdims=True)
    blind = call("eq", blind, literal(-math.inf, scores.dtype))
    nothing = literal(0, scores.dtype)
    seen = call("where", blind, nothing, scores)  # the softmax of a blind row would be NaN, and so its gradient
    return call("where", blind, nothing, call("softmax", seen, axis=along))


def _fitted(cotangent: N, operand: N, shared: int) -> N:
    """Summed over the heads that share an operand and over what it was broadcast along, in its dtype."""
    shape = operand.shape
    if len(cotangent.shape) == len(shape) == 2:
        return _in(cotangent, operand)
    *batch, heads, length, size = shape if len(shape) > 2 else (1, *shape)
    summed = sum_to(cotangent, (*batch, shared, heads // max(shared, 1), length, size))
    return _in(call("reshape", summed, shape=shape), operand)


def _in(x: N, like: N) -> N:
    return x if x.dtype is like.dtype else call("cast", x, dtype=like.dtype)
