"""Attention whose scores are changed before the softmax: `scored_attention`.

    scores[i, j] = scoring(scale * <q[i], k[j]>, what lies beside (i, j))
    result[i]    = sum_j softmax(scores[i])[j] v[j]

The attribute `scores` holds the steps (`scoring.py`), the operands from the fifth on what they are applied to beside
the score; each broadcasts to the scores, a count of positions among them. A score of -inf hides its key; a query that
sees none gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, accumulator
from tessera.ops.applications import products
from tessera.ops.attention import records, scoring
from tessera.ops.attention.gradients import scored_gradient
from tessera.ops.attention.scoring import Scoring
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register

N: TypeAlias = Any

NAME = "scored_attention"
MOST = 64
"""Operands beside queries, keys, values and the scale."""


def operand_dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Those of attention, and what is beside the score as it is. Raises DTypeError."""
    extras = operands[4:]
    if any(extra.dtype.kind == "complex" for extra in extras):
        raise dtype_error(name, operands, "scores are real", ["take the real part"])
    return [*records.operand_dtypes(name, operands[:4], attributes), *(extra.dtype for extra in extras)]


def _flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """Of the two products, over all keys: which are hidden, the data say."""
    return records.flops(operands[:4], result, {"causal": False})


def _reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor, *extras: torch.Tensor, scores: Scoring
) -> torch.Tensor:
    products, values = records.reference_products(q, k, v, scale)
    return records.reference_means(scoring.referred(scores, products, extras), values)


def scored_by(e: Emitter[V], q: V, extras: Sequence[V], scores: Scoring) -> Callable[[V], V]:
    """What steps make of a score in a tile body."""

    def scored(score: V) -> V:
        return scoring.emitted(scores, e, e.cast(score, accumulator(q.dtype)), extras)

    return scored


def _body(e: Emitter[V], q: V, k: V, v: V, scale: V, *extras: V, scores: Scoring) -> V:
    return e.attend(q, k, v, scale, None, False, scored_by(e, q, extras, scores))


SCORED_ATTENTION = register(
    Operator(
        name=NAME,
        family="attention",
        arity=(4, 4 + MOST),
        operand_dtypes=operand_dtypes,
        result=records.result,
        flops=_flops,
        reference=_reference,
        gradient=scored_gradient,
        body=_body,
        title="FlashAttn",
        attributes={"scores": ()},
        application=products.of_scored_attention,
    )
)
