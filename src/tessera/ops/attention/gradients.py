"""The gradient of attention: by kernels that form the weights again block by block (`trained.py`); where nothing has
elements, and where steps change the scores, out of other operators, which takes memory for several matrices of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tessera.dtypes import accumulator, bool_
from tessera.ops.algebra import call, sum_to
from tessera.ops.attention import scoring
from tessera.ops.attention.scoring import Scoring
from tessera.ops.attention.whole import (
    ScoreMatrix,
    as_stored,
    fitted,
    full,
    grouped,
    hidden,
    row_sums,
    softmaxed,
    widened,
)
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
    if _goes_by_blocks(q, k, v):
        return _by_blocks(g, q, k, v, scale, out, masks, causal)
    wide = accumulator(q.dtype)
    shared = k.shape[-3] if len(k.shape) > 2 else 1
    lead = len(out.shape) > 2
    queries, keys, values = (grouped(widened(x, wide), shared, lead) for x in (q, k, v))
    above = grouped(widened(g, wide), shared, lead)
    products = call("matmul", queries, transpose_last(keys))
    scores, mask = products * scale, masks[0] if masks else None
    grid = (*out.shape[:-1], k.shape[-2])
    grouped_mask = None
    if mask is not None:
        own = mask if mask.dtype in (bool_, wide) else call("cast", mask, dtype=wide)
        grouped_mask = grouped(call("broadcast_to", own, shape=grid), shared, lead)
    weights = softmaxed(hidden(scores, grouped_mask, causal))
    d_weights = call("matmul", above, transpose_last(values))
    along = len(weights.shape) - 1
    mean = call("sum", d_weights * weights, axes=(along,), keepdims=True)
    d_scores = weights * (d_weights - mean)
    d_queries = call("matmul", d_scores, keys) * scale
    d_keys = call("matmul", transpose_last(d_scores), queries) * scale
    d_values = call("matmul", transpose_last(weights), above)
    found = [fitted(d, x, shared) for d, x in ((d_queries, q), (d_keys, k), (d_values, v))]
    d_scale = None if scale.structure.weak else sum_to(d_scores * products, ())
    if mask is None:
        return found[0], found[1], found[2], d_scale
    d_mask = None
    if mask.dtype is not bool_:
        d_mask = as_stored(sum_to(call("reshape", d_scores, shape=grid), mask.shape), mask)
    return found[0], found[1], found[2], d_scale, d_mask


def scored_gradient(g: N, operands: tuple[N, ...], out: N, *, scores: Scoring) -> tuple[N | None, ...]:
    """The same where steps change the scores: dS goes back through their gradients, to the product, and to what the
    steps read beside it.
    """
    q, k, v, scale, *extras = operands
    wide = accumulator(q.dtype)
    shared = k.shape[-3] if len(k.shape) > 2 else 1
    lead = len(out.shape) > 2
    queries, keys, values = (grouped(widened(x, wide), shared, lead) for x in (q, k, v))
    above = grouped(widened(g, wide), shared, lead)
    products = call("matmul", queries, transpose_last(keys))
    grid = (*out.shape[:-1], k.shape[-2])
    score = call("reshape", products * scale, shape=grid)
    steps = scoring.applied(scores, score, extras)
    changed = scoring.last_of(steps, score)
    weights = softmaxed(grouped(call("broadcast_to", changed, shape=grid), shared, lead))
    d_weights = call("matmul", above, transpose_last(values))
    mean = call("sum", d_weights * weights, axes=(len(weights.shape) - 1,), keepdims=True)
    d_changed = call("reshape", weights * (d_weights - mean), shape=grid)
    d_score, d_extras = scoring.pulled_back(scores, sum_to(d_changed, changed.shape), score, extras, steps)
    d_values = fitted(call("matmul", transpose_last(weights), above), v, shared)
    if d_score is None:  # the score does not decide anything
        return None, None, d_values, None, *d_extras
    d_scores = grouped(d_score, shared, lead)
    d_queries = call("matmul", d_scores, keys) * scale
    d_keys = call("matmul", transpose_last(d_scores), queries) * scale
    d_scale = None if scale.structure.weak else sum_to(d_scores * products, ())
    return fitted(d_queries, q, shared), fitted(d_keys, k, shared), d_values, d_scale, *d_extras


def _goes_by_blocks(q: N, k: N, v: N) -> bool:
    """Whether kernels form the gradient block by block: of what has elements."""
    return 0 not in (*q.shape, *k.shape, *v.shape)


def _by_blocks(
    g: N, q: N, k: N, v: N, scale: N, out: N, masks: Sequence[N], causal: bool
) -> tuple[N, N, N, N | None] | tuple[N, N, N, N | None, N | None]:
    """The cotangents by kernels of their own, of operands with all dimensions."""
    batch, wide = out.shape[:-3], accumulator(q.dtype)
    whole_q, whole_k, whole_v, whole_g, whole_out = (full(x, batch) for x in (q, k, v, g, out))
    seen = (q, k, v) if len(v.shape) == len(out.shape) else (whole_q, whole_k, whole_v)
    logarithms = full(call("attention_logarithms", *seen, scale, *masks, causal=causal), batch)
    mean = row_sums(widened(whole_g, wide) * widened(whole_out, wide))
    d_q, d_k, d_v, d_scale = cotangents(
        whole_g, (whole_q, whole_k, whole_v), logarithms, mean, scale, masks, causal=causal
    )
    found = [sum_to(cotangent, operand.shape) for cotangent, operand in ((d_q, q), (d_k, k), (d_v, v))]
    if not masks:
        return found[0], found[1], found[2], d_scale
    (mask,), d_mask = masks, None
    if mask.dtype is not bool_:
        d_mask = ScoreMatrix.of(whole_q, whole_k, scale, masks, causal).cotangent_of_mask(
            whole_g, whole_v, logarithms, mean
        )
    return found[0], found[1], found[2], d_scale, d_mask


def cotangents(
    g: N, operands: tuple[N, N, N], logarithms: N, mean: N, scale: N, masks: Sequence[N], *, causal: bool
) -> tuple[N, N, N, N | None]:
    """The cotangents of queries, keys, values and the scale, of what kernels sum up (`trained.py`)."""
    all_operands = *operands, g, logarithms, mean, scale, *masks
    d_q, d_k, d_v = (call(f"attention_d{of}", *all_operands, causal=causal) for of in "qkv")
    d_scale = None if scale.structure.weak else sum_to(d_q * widened(operands[0], d_q.dtype), ())
    found = (as_stored(each, x) for each, x in zip((d_q * scale, d_k * scale, d_v), operands, strict=True))
    return *found, d_scale
