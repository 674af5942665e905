"""The gradient of attention, out of existing operators.

The weights are formed anew and as a whole, so that it takes memory for several matrices of scores. Forming them block
by block, as the forward kernel does (Dao et al. 2022, algorithm 4), takes a kernel of its own.
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
    return call("where", blind, literal(0, scores.dtype), call("softmax", scores, axis=along))


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
