"""Attention, and its gradient by the logarithms of the softmax's sums."""

from __future__ import annotations

import math

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.shapes import along
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps

aten = torch.ops.aten


@maps(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    wanted: Wanted,
) -> tuple[Tensor, Tensor | None]:
    _refuse_dropout(dropout_p)
    # torch aligns the causal mask to the upper left corner of the scores, Tessera to the lower right.
    square = q.shape[-2] == k.shape[-2]
    mask = _causal(q, k) if is_causal and not square else attn_mask
    result = op.flash_attention(q, k, v, causal=is_causal and square, scale=scale, mask=mask)
    if 1 not in wanted.used:
        return result, None
    sums = op.logsumexp(_scores(q, k, is_causal, attn_mask, scale), -1)
    # Torch has [batch, heads, queries] in memory of [batch, queries, heads].
    return result, sums


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise Unsupported("attention with dropout")


def _causal(q: Tensor, k: Tensor) -> Tensor:
    """Which keys a query may attend to: [queries, keys]."""
    queries, keys = (op.arange(each.shape[-2]) for each in (q, k))
    return op.le(keys, along(queries, 0, 2))


def _scores(q: Tensor, k: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    """The masked scores, in the dtype that they are summed in."""
    wide = accumulator(q.dtype)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = op.matmul(q.to(wide), op.swapaxes(k.to(wide), -1, -2)) * factor
    if mask is not None:
        scores = op.where(mask, scores, -math.inf) if mask.dtype.kind == "bool" else scores + mask
    return op.where(_causal(q, k), scores, -math.inf) if is_causal else scores


@maps(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    _refuse_dropout(dropout_p)
    wide = accumulator(q.dtype)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    shares = op.exp(_scores(q, k, is_causal, attn_mask, scale) - op.unsqueeze(logsumexp, -1))
    wide_g = g.to(wide)
    dv = op.matmul(op.swapaxes(shares, -1, -2), wide_g)
    dp = op.matmul(wide_g, op.swapaxes(v.to(wide), -1, -2))
    ds = shares * (dp - op.sum(wide_g * out.to(wide), -1, True)) * factor
    dq = op.matmul(ds, k.to(wide))
    dk = op.matmul(op.swapaxes(ds, -1, -2), q.to(wide))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
