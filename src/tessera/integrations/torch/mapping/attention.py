"""Attention, and its gradient."""

from __future__ import annotations

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.shapes import along
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.algebra import call
from tessera.ops.attention.calls import scaled
from tessera.ops.attention.gradients import cotangents
from tessera.ops.attention.scoring import masking
from tessera.ops.attention.trained import LOGARITHMS
from tessera.ops.attention.whole import as_stored, row_sums, widened

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
    _refuse(dropout_p, q, v)
    causal, mask = _aligned(q, k, is_causal, attn_mask)
    if 1 not in wanted.used:
        return op.flash_attention(q, k, v, causal=causal, scale=scale, mask=mask), None
    operands = *_scaled(q, k, v, scale), *_mask_of(mask)
    logarithms = call(LOGARITHMS, *operands, causal=causal)  # for a gradient, whose kernel takes them
    return call("flash_attention", *operands, causal=causal), op.reshape(logarithms, logarithms.shape[:-1])


def _scaled(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    queries, factor = scaled(q, scale)
    return queries, k, v, factor  # type: ignore[return-value]


def _mask_of(mask: Tensor | None) -> tuple[Tensor, ...]:
    """The operands that a mask is."""
    return () if mask is None else (mask,)


def _aligned(q: Tensor, k: Tensor, is_causal: bool, mask: Tensor | None) -> tuple[bool, Tensor | None]:
    """Whether attention is causal as Tessera has it, and the mask. torch aligns the causal mask to the upper left
    corner of the scores, Tessera to the lower right.
    """
    square = q.shape[-2] == k.shape[-2]
    return is_causal and square, _causal(q, k) if is_causal and not square else mask


def _refuse(dropout_p: float, q: Tensor, v: Tensor) -> None:
    if dropout_p:
        raise Unsupported("attention with dropout")
    if not q.shape[-1] or not v.shape[-1]:
        raise Unsupported("heads of no elements")


def _causal(q: Tensor, k: Tensor) -> Tensor:
    """Which keys a query may attend to: [queries, keys]."""
    queries, keys = (op.arange(each.shape[-2]) for each in (q, k))
    return op.le(keys, along(queries, 0, 2))


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
    _refuse(dropout_p, q, v)
    causal, mask = _aligned(q, k, is_causal, attn_mask)
    queries, *rest, factor = _scaled(q, k, v, scale)
    keys, values = rest
    wide = accumulator(q.dtype)
    mean = row_sums(widened(g, wide) * widened(out, wide))
    masks = _mask_of(mask)
    steps = masking([each.dtype for each in masks], wide)
    logarithms = op.reshape(logsumexp, (*logsumexp.shape, 1))
    found = cotangents((queries, keys, values), g, logarithms, mean, factor, masks, steps, causal=causal)
    d_q, d_k, d_v = (as_stored(d, q) for d in found[:3])
    return op.neg(d_q) if scale is not None and scale < 0 else d_q, d_k, d_v
