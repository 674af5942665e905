"""Attention, and its gradient."""

from __future__ import annotations

import math

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.shapes import along
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.algebra import call
from tessera.ops.attention.saved import BACKWARD, FORWARD

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
    if not q.shape[-1]:
        raise Unsupported("heads of no elements")
    if 1 in wanted.used:  # for a gradient, whose kernel takes what this one gives
        operands, attributes = _saved(q, k, v, attn_mask), _attributes(q, is_causal, scale)
        means, logarithms = (call(name, *operands, **attributes) for name in FORWARD)
        return op.swapaxes(means, 1, 2), op.swapaxes(logarithms, 1, 2)
    # torch aligns the causal mask to the upper left corner of the scores, Tessera to the lower right.
    square = q.shape[-2] == k.shape[-2]
    mask = _causal(q, k) if is_causal and not square else attn_mask
    return op.flash_attention(q, k, v, causal=is_causal and square, scale=scale, mask=mask), None


def _saved(*operands: Tensor | None) -> list[Tensor]:
    """Operands of attention that is trained, whose heads follow the length; masks are over scores, and stay."""
    *tensors, mask = operands
    found = [op.swapaxes(each, 1, 2) for each in tensors if each is not None]
    if mask is None:
        return found
    return [*found, op.reshape(mask, (*(1,) * (4 - len(mask.shape)), *mask.shape))]


def _attributes(q: Tensor, is_causal: bool, scale: float | None) -> dict[str, object]:
    return {"causal": is_causal, "scale": 1 / math.sqrt(q.shape[-1]) if scale is None else scale}


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise Unsupported("attention with dropout")


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
    _refuse_dropout(dropout_p)
    operands = _saved(g, q, k, v, out, logsumexp, attn_mask)
    attributes = _attributes(q, is_causal, scale)
    dq, dk, dv = (op.swapaxes(call(name, *operands, **attributes), 1, 2) for name in BACKWARD)
    return dq, dk, dv
