"""Attention to numbers that stand for others by a factor, as 8-bit floats do: `scaled_attention`.

    scores[i, j] = scale * <q[i], k[j]>                  the scale times the factors of Q and of K
    result[i]    = value_scale * sum_j softmax(scores[i])[j] v[j]

Scores, softmax and sums are in fp32, and the result is rounded once, to a dtype of its own. Operands of 8 bits are read
as they lie. Kernels may round the weights, which are 1 at most, to fp8_e4m3 before they multiply fp8_e4m3 values, as
GPUs do that have such products and round to that dtype by instructions (Shah et al., "FlashAttention-3", 2024, section
3.3, without its blocks of factors); references and CPUs multiply them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, accumulator, bf16
from tessera.ir.anchors import rules as anchors
from tessera.ops.algebra import call, sum_to
from tessera.ops.applications import products
from tessera.ops.attention import records
from tessera.ops.attention.gradients import attention_gradient
from tessera.ops.attention.whole import as_stored
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register

N: TypeAlias = Any

NAME = "scaled_attention"


def _operand_dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Those of attention, and the values' factor in the dtype of sums. Raises DTypeError."""
    wanted = attributes["dtype"]
    if not isinstance(wanted, DType) or wanted.kind != "float":
        raise dtype_error(name, operands, "the result is of a floating-point dtype", ["dtype='bf16'"])
    found = records.operand_dtypes(name, operands[:4], attributes)
    return [*found, found[3]]


def _element(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    dtype: DType = attributes["dtype"]
    return dtype


def _flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return records.flops(operands, result, attributes)


def _reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: torch.Tensor,
    value_scale: torch.Tensor,
    *,
    causal: bool,
    dtype: DType,
) -> torch.Tensor:
    scores, v = records.reference_products(q, k, v, scale)
    if causal:
        scores = torch.where(records.causal_mask(*scores.shape[-2:]), scores, float("-inf"))
    return records.reference_means(scores, v) * value_scale


def _gradient(g: N, operands: tuple[N, ...], out: N, *, causal: bool, dtype: DType) -> tuple[N | None, ...]:
    """That of attention to the same numbers in the dtype of sums, times the values' factor."""
    *narrow, scale, value_scale = operands
    wide = accumulator(operands[0].dtype)
    q, k, v = (x if x.dtype is wide else call("cast", x, dtype=wide) for x in narrow)
    means = call("flash_attention", q, k, v, scale, causal=causal)
    above = g if g.dtype is wide else call("cast", g, dtype=wide)
    d_q, d_k, d_v, d_scale = attention_gradient(above * value_scale, (q, k, v, scale), means, causal=causal)
    found = [as_stored(d, x) if d is not None else None for d, x in zip((d_q, d_k, d_v), narrow, strict=True)]
    return *found, d_scale, None if value_scale.structure.weak else sum_to(above * means, ())


def _body(e: Emitter[V], q: V, k: V, v: V, scale: V, value_scale: V, *, causal: bool, dtype: DType) -> V:
    means = e.attend(q, k, v, scale, None, causal)
    return e.mul(means, e.cast(value_scale, accumulator(q.dtype)))


SCALED_ATTENTION = register(
    Operator(
        name=NAME,
        family="attention",
        arity=(5, 5),
        operand_dtypes=_operand_dtypes,
        anchor=anchors.scaled_attention,
        element=_element,
        flops=_flops,
        reference=_reference,
        gradient=_gradient,
        body=_body,
        title="FlashAttn",
        attributes={"causal": False, "dtype": bf16},
        application=products.of_attention_by_factors,
    )
)
