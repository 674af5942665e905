"""What the gradient of attention is made of: the logarithms of a softmax's sums, and cotangents by blocks.

    L[i]    = log(sum_j exp(S[i, j])),   S = scores(scale Q K^T, x)        attention_logarithms, or of scored attention
    P[i, j] = exp(S[i, j] - L[i]),   dS = P (g V^T - mean),   mean[i] = <g[i], out[i]>
    dT      = dS d scores / d (scale Q K^T),   dX = dS d scores / dx
    dT K,   dT^T Q,   P^T g                                                attention_dq, attention_dk, attention_dv
    dX, summed over keys, queries, or none of them                         attention_dx

Kernels form P and dS again block by block, so that no matrix of scores is in memory: Dao, "FlashAttention-2" (2023),
algorithm 2. The first two lack the scale, by which they are multiplied as numbers are. `scores` are the steps of
`scored_attention`, a mask among them; their derivatives are steps, too (`derivatives.py`). Operands are those of
`scored_attention`, of full rank, behind Q, K and V also g, and L and mean, [..., heads, queries, 1]; sums are in the
accumulator's dtype. A query that sees no key has the logarithm -inf, and P is 0.

Where no cotangent arrives, as at hidden keys, none goes on, whatever the derivative is there: 0 times NaN is NaN, and a
tensor that the steps read may have one where nobody sees a key.

Their own gradients are formed out of other operators, with matrices of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import torch

from tessera.dtypes import DType, accumulator, dtype_of
from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, sum_to
from tessera.ops.applications import products
from tessera.ops.attention import records, scored, scoring
from tessera.ops.attention.derivatives import derivatives
from tessera.ops.attention.scoring import SCORE, Scoring
from tessera.ops.attention.whole import ScoreMatrix, full, row_sums
from tessera.ops.contraction.records import transpose_last
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register, shape_error

N: TypeAlias = Any
Of: TypeAlias = Literal["q", "k", "v", "x"]

LOGARITHMS = "attention_logarithms"
SCORED_LOGARITHMS = "scored_attention_logarithms"
_OF: tuple[Of, ...] = ("q", "k", "v", "x")
COTANGENTS: Final[Mapping[Of, str]] = {of: f"attention_d{of}" for of in _OF}
LARGE_LOGARITHM = 2.0**16
"""Where a logarithm is larger, no weight is above 1: scores are beyond it by rounding alone, but by that much that
weights of fp32 would be some multiples of 1, up to infinity.
"""


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
    """Q, K, V and the cotangent of one dtype, the next three in that of the sums, all else as it is. Raises
    DTypeError.
    """
    q, k, v, g, _, _, scale, *extras = operands
    if g.dtype is not q.dtype:
        raise dtype_error(name, operands, "the cotangent has the dtype of Q, K and V", ["cast it"])
    first = scored.operand_dtypes(name, (q, k, v, scale, *extras), attributes)
    return [*first[:3], q.dtype, *[accumulator(q.dtype)] * 3, *first[4:]]


def _flops(count: int) -> Callable[..., int]:
    """Of products of queries, keys and the size of a head, over the keys that are seen."""

    def flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
        *heads, queries, size = operands[0].shape
        pairs = records.visible_pairs(queries, operands[1].shape[-2], attributes.get("causal", False))
        return 2 * count * pairs * size * math.prod(heads)

    return flops


# -- references -------------------------------------------------------------------------------------------------------


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: torch.Tensor, extras: Sequence[torch.Tensor], causal: bool, steps: Scoring
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scaled products, and what the softmax sees."""
    products, _ = records.reference_products(q, k, k, scale)
    scores = torch.broadcast_to(scoring.referred(steps, products, extras), products.shape)
    if causal:
        scores = torch.where(records.causal_mask(*scores.shape[-2:]), scores, -math.inf)
    return products, scores


def _logarithms_of(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    found = torch.logsumexp(scores, -1, keepdim=True)
    return found + torch.zeros((*v.shape[:-3], *(1,) * min(v.dim(), 3)))  # over the values' batches


def _logarithms(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor, *masks: torch.Tensor, causal: bool
) -> torch.Tensor:
    steps = scoring.masking([dtype_of(mask.dtype) for mask in masks], dtype_of(q.dtype))
    return _logarithms_of(_scores(q, k, scale, masks, causal, steps)[1], v)


def _scored_logarithms(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor, *extras: torch.Tensor, scores: Scoring
) -> torch.Tensor:
    return _logarithms_of(_scores(q, k, scale, extras, False, scores)[1], v)


def _one(*operands: torch.Tensor, **attributes: Any) -> float:
    """The logarithm of a sum of exponentials, of which the largest is 1."""
    return 1.0


def _cotangent(
    of: Of,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    logarithms: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    *extras: torch.Tensor,
    causal: bool,
    scores: Scoring,
    place: int = SCORE,
    along: str = "",
) -> torch.Tensor:
    q, k, v, g = (x.to(logarithms.dtype) for x in (q, k, v, g))
    products, changed = _scores(q, k, scale, extras, causal, scores)
    beyond = changed - torch.where(logarithms.isinf(), math.inf, logarithms)
    weights = torch.exp(torch.where((beyond > 0) & (logarithms.abs() > LARGE_LOGARITHM), 0.0, beyond))
    group = q.shape[-3] // max(k.shape[-3], 1)

    def shared(x: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = x.reshape(*x.shape[:-3], k.shape[-3], group, *x.shape[-2:]).sum(-3)
        return summed

    if of == "v":
        return shared(weights.mT @ g)
    d_changed = weights * (g @ v.repeat_interleave(group, -3).mT - mean)
    kinds = tuple([dtype_of(extra.dtype) for extra in extras])
    derivative = _derivative(scores, dtype_of(products.dtype), kinds, place)
    found = scoring.referred(derivative, products, (*extras, d_changed))
    found = torch.where(d_changed == 0, 0.0, torch.broadcast_to(found, products.shape))
    if of == "x":
        summed = [axis for axis, name in ((-2, "q"), (-1, "k")) if name not in along]
        return found.sum(summed, keepdim=True) if summed else found
    return found @ k.repeat_interleave(group, -3) if of == "q" else shared(found.mT @ q)


def _derivative(scores: Scoring, dtype: DType, extras: tuple[DType, ...], place: int) -> Scoring:
    """The steps to the cotangent of a score, or of an operand beside it, as steps number them."""
    found = (derivatives(scores, dtype, extras) or ())[place]
    assert found is not None, "gradients are asked for what has one"
    return found


# -- gradients --------------------------------------------------------------------------------------------------------


def _logarithms_gradient(g: N, operands: tuple[N, ...], out: N, *, causal: bool) -> tuple[N | None, ...]:
    q, _, _, _, *masks = operands
    steps = scoring.masking([mask.dtype for mask in masks], accumulator(q.dtype))
    return _by_logarithms(g, operands, out, steps, causal)


def _scored_logarithms_gradient(g: N, operands: tuple[N, ...], out: N, *, scores: Scoring) -> tuple[N | None, ...]:
    return _by_logarithms(g, operands, out, scores, False)


def _by_logarithms(g: N, operands: tuple[N, ...], out: N, scores: Scoring, causal: bool) -> tuple[N | None, ...]:
    """The softmax's weights, times the cotangent of their query."""
    q, k, _, scale, *extras = operands
    matrix = ScoreMatrix.of(full(q, out.shape[:-3]), full(k, out.shape[:-3]), scale, extras, causal, scores)
    d_q, d_k, rest = matrix.pulled_back(matrix.weights(out) * matrix.grouped(g))
    fit_q, fit_k = (None if d is None else sum_to(d, x.shape) for d, x in ((d_q, q), (d_k, k)))
    return fit_q, fit_k, None, *rest


def _second_gradient(
    of: Of,
    u: N,
    operands: tuple[N, ...],
    out: N,
    *,
    causal: bool,
    scores: Scoring,
    place: int = SCORE,
    along: str = "",
) -> tuple[N | None, ...]:
    """Of a cotangent, by all that it is made of, as a whole."""
    q, k, v, g, logarithms, mean, scale, *extras = operands
    matrix = ScoreMatrix.of(q, k, scale, extras, causal, scores)
    weights, above = matrix.weights(logarithms), matrix.grouped(g)
    if of == "v":
        own = matrix.grouped(u)
        d_changed = call("matmul", above, transpose_last(own)) * weights
        d_q, d_k, rest = matrix.pulled_back(d_changed)
        d_v, d_g, d_mean = None, call("matmul", weights, own), None
    else:
        values = matrix.grouped(v)
        less = call("matmul", above, transpose_last(values)) - matrix.grouped(mean)
        kinds = tuple([extra.dtype for extra in extras])
        derivative = _derivative(scores, matrix.score.dtype, kinds, place)
        derived = matrix.derived(derivative, weights * less)
        more_q = more_k = None
        if of == "x":
            arriving = u
        else:
            own = matrix.grouped(u)
            pair = (own, matrix.keys) if of == "q" else (matrix.queries, own)
            arriving = matrix.apart(call("matmul", pair[0], transpose_last(pair[1])))
            direct = matrix.grouped(call("broadcast_to", derived.result, shape=matrix.score.shape))
            more_q, more_k = (
                (None, call("matmul", transpose_last(direct), own))
                if of == "q"
                else (call("matmul", direct, own), None)
            )
        *more, d_less = derived.pulled_back(arriving)
        d_products = matrix.grouped(call("broadcast_to", d_less, shape=matrix.score.shape)) * weights
        d_changed = d_products * less
        d_q, d_k, rest = matrix.pulled_back(d_changed, more_q, more_k, tuple(more))
        d_v = matrix.fitted(call("matmul", transpose_last(d_products), above), v)
        d_g = call("matmul", d_products, values)
        d_mean = matrix.fitted(row_sums(d_products) * -1.0, mean)
    d_logarithms = matrix.fitted(row_sums(d_changed) * -1.0, logarithms)
    return d_q, d_k, d_v, matrix.fitted(d_g, g), d_logarithms, d_mean, *rest


# -- records ----------------------------------------------------------------------------------------------------------


def _body_of_logarithms(e: Emitter[V], q: V, k: V, v: V, scale: V, mask: V | None = None, *, causal: bool) -> V:
    return e.attend_logarithms(q, k, v, scale, mask, causal)


def _body_of_scored(e: Emitter[V], q: V, k: V, v: V, scale: V, *extras: V, scores: Scoring) -> V:
    return e.attend_logarithms(q, k, v, scale, None, False, scored.scored_by(e, q, extras, scores))


def _body(
    of: Of,
    e: Emitter[V],
    q: V,
    k: V,
    v: V,
    g: V,
    logarithms: V,
    mean: V,
    scale: V,
    *extras: V,
    causal: bool,
    scores: Scoring,
    place: int = SCORE,
    along: str = "",
) -> V:
    dtype = accumulator(q.dtype)
    steps = derivatives(scores, dtype, tuple([extra.dtype for extra in extras])) or ()
    wide = [e.cast(extra, dtype) if extra.dtype.kind == "float" else extra for extra in extras]

    def derived(derivative: Scoring, score: V, cotangent: V) -> V:
        found = scoring.emitted(derivative, e, score, (*wide, cotangent))
        if found is cotangent:
            return found
        nothing = e.constant(0, cotangent.dtype)
        return e.select(e.compare("eq", cotangent, nothing), nothing, found)

    to_score, beside = (None if each is None else partial(derived, each) for each in (steps[0], steps[place]))
    changed = scored.scored_by(e, q, extras, scores) if scores else None
    operands = q, k, v, g, logarithms, mean, scale
    return e.attend_back((place, along) if of == "x" else of, operands, causal, changed, to_score, beside)


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

register(
    Operator(
        name=SCORED_LOGARITHMS,
        family="attention",
        arity=(4, 4 + scored.MOST),
        anchor=anchor_rules.attention_logarithms,
        operand_dtypes=scored.operand_dtypes,
        result=_result_of_logarithms,
        flops=_flops(1),
        reference=_scored_logarithms,
        gradient=_scored_logarithms_gradient,
        body=_body_of_scored,
        attributes={"scores": ()},
        application=products.of_scored_attention,
        terms=_one,
    )
)


def _about(of: Of, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of all cotangents, of one of them, with the attributes that its record has."""

    def of_operand(*given: Any, causal: bool, scores: Scoring) -> Any:
        return function(of, *given, causal=causal, scores=scores)

    def beside(*given: Any, causal: bool, scores: Scoring, place: int, along: str) -> Any:
        return function(of, *given, causal=causal, scores=scores, place=place, along=along)

    return beside if of == "x" else of_operand


def _register_cotangent(of: Of, count: int, **more: object) -> None:
    """The record of a cotangent, which takes `count` products."""
    register(
        Operator(
            name=COTANGENTS[of],
            family="attention_gradient",
            arity=(7, 7 + scored.MOST),
            anchor=anchor_rules.attention_cotangent(of),
            operand_dtypes=_dtypes,
            element=_sums,
            flops=_flops(count),
            reference=_about(of, _cotangent),
            gradient=_about(of, _second_gradient),
            body=_about(of, _body),
            title="FlashAttnGrad",
            attributes={"causal": False, "scores": (), **more},
            application=products.of_attention_gradients if of != "x" else products.of_cotangents_beside,
        )
    )


_register_cotangent("q", 3)
_register_cotangent("k", 3)
_register_cotangent("v", 2)
_register_cotangent("x", 2, place=1, along="q")
