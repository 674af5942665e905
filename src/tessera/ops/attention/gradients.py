"""The gradient of attention: by kernels that form the weights again block by block (`trained.py`); where nothing has
elements, and where a step of the scores has a gradient that is not elementwise, out of other operators, which takes
memory for several matrices of scores (`whole.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tessera.dtypes import accumulator
from tessera.ops.algebra import call, sum_to
from tessera.ops.attention import scoring
from tessera.ops.attention.derivatives import derivatives
from tessera.ops.attention.scoring import Scoring
from tessera.ops.attention.whole import ScoreMatrix, as_stored, full, row_sums, softmaxed, widened
from tessera.ops.contraction.records import transpose_last

N: TypeAlias = Any


def attention_gradient(g: N, operands: tuple[N, ...], out: N, *, causal: bool) -> tuple[N | None, ...]:
    """With P = softmax(S), S = scale Q K^T + mask: dV = P^T g, dS = P (g V^T - rowsum(g V^T P)), dQ = scale dS K,
    dK = scale dS^T Q, and the sums of dS for the mask and of dS Q K^T for the scale (Dao et al. 2022, appendix B.2).
    """
    q, _, _, scale, *masks = operands
    steps = scoring.masking([mask.dtype for mask in masks], accumulator(q.dtype))

    def logarithms(q: N, k: N, v: N) -> N:
        return call("attention_logarithms", q, k, v, scale, *masks, causal=causal)

    return _gradient(g, operands, out, steps, causal, logarithms)


def scored_gradient(g: N, operands: tuple[N, ...], out: N, *, scores: Scoring) -> tuple[N | None, ...]:
    """The same where steps change the scores: dS goes back through their gradients, to the product, and to what the
    steps read beside it.
    """
    _, _, _, scale, *extras = operands

    def logarithms(q: N, k: N, v: N) -> N:
        return call("scored_attention_logarithms", q, k, v, scale, *extras, scores=scores)

    return _gradient(g, operands, out, scores, False, logarithms)


def _gradient(
    g: N, operands: tuple[N, ...], out: N, scores: Scoring, causal: bool, logarithms: Callable[[N, N, N], N]
) -> tuple[N | None, ...]:
    """The cotangents of all operands; `logarithms` are those of queries' sums, of operands that broadcast."""
    q, k, v, scale, *extras = operands
    batch, dtype = out.shape[:-3], accumulator(q.dtype)
    whole_q, whole_k, whole_v, whole_g, whole_out = (full(x, batch) for x in (q, k, v, g, out))
    known = derivatives(scores, dtype, tuple([extra.dtype for extra in extras]))
    d_v: N
    if known is None or not _goes_by_blocks(q, k, v):
        matrix = ScoreMatrix.of(whole_q, whole_k, scale, extras, causal, scores)
        weights, above = softmaxed(matrix.changed), matrix.grouped(whole_g)
        d_weights = call("matmul", above, transpose_last(matrix.grouped(whole_v)))
        d_changed = weights * (d_weights - row_sums(d_weights * weights))
        d_q, d_k, rest = matrix.pulled_back(d_changed)
        d_v = matrix.fitted(call("matmul", transpose_last(weights), above), whole_v)
    else:
        seen = (q, k, v) if len(v.shape) == len(out.shape) else (whole_q, whole_k, whole_v)
        saved = full(logarithms(*seen), batch)
        mean = row_sums(widened(whole_g, dtype) * widened(whole_out, dtype))
        made_of = (whole_q, whole_k, whole_v), whole_g, saved, mean, scale, extras, scores
        d_q, d_k, d_v, rest = cotangents(*made_of, causal=causal)
    found = [None if d is None else as_stored(sum_to(d, x.shape), x) for d, x in ((d_q, q), (d_k, k), (d_v, v))]
    return *found, *rest


def cotangents(
    operands: tuple[N, N, N],
    g: N,
    logarithms: N,
    mean: N,
    scale: N,
    extras: Sequence[N],
    scores: Scoring,
    *,
    causal: bool,
) -> tuple[N | None, N | None, N, list[N | None]]:
    """The cotangents of queries, keys and values, in the dtype of sums, and of the scale and what is beside the scores,
    of what kernels sum up (`trained.py`).
    """
    q = operands[0]
    known = derivatives(scores, accumulator(q.dtype), tuple([extra.dtype for extra in extras]))
    assert known is not None, "kernels take steps whose gradients are elementwise"
    made_of = *operands, g, logarithms, mean, scale, *extras
    named = {"causal": causal, "scores": scores}
    d_v = call("attention_dv", *made_of, **named)
    beside = _beside(made_of, extras, known, named)
    if known[0] is None:  # the score decides nothing
        return None, None, d_v, [None, *beside]
    of_queries, of_keys = (call(f"attention_d{of}", *made_of, **named) for of in "qk")
    d_scale = None if scale.structure.weak else sum_to(of_queries * widened(q, of_queries.dtype), ())
    return of_queries * scale, of_keys * scale, d_v, [d_scale, *beside]


def _goes_by_blocks(q: N, k: N, v: N) -> bool:
    """Whether kernels form the gradient block by block: of what has elements."""
    return 0 not in (*q.shape, *k.shape, *v.shape)


def _beside(
    made_of: Sequence[N], extras: Sequence[N], known: Sequence[Scoring | None], named: dict[str, Any]
) -> list[N | None]:
    """The cotangents of what steps read beside the score: sums along queries, along keys, or neither where an operand
    has an element for each pair of them, and its cotangent so many, too.
    """
    found: list[N | None] = []
    for place, extra in enumerate(extras, 1):
        if known[place] is None or extra.structure.weak:
            found.append(None)
            continue
        walked = (1, 1, *extra.shape)[-2:]
        along = "".join(axis for axis, extent in zip("qk", walked, strict=True) if extent != 1) or "q"
        sums = call("attention_dx", *made_of, **named, place=place, along=along)
        found.append(as_stored(sum_to(sums, extra.shape), extra))
    return found
