"""The operators that torch has as `torch.ops.tessera.*`: what it has no kernel of its own for, or takes apart."""

from __future__ import annotations

from typing import Any

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.library import define, like_the_first
from tessera.typing import ArrayLike


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: ArrayLike | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    return op.flash_attention(q, k, v, mask=mask, causal=causal, scale=scale)


def _rope(x: ArrayLike, theta: float = 10000.0) -> Tensor:
    return op.rope(x, theta=theta)


softmax = define("softmax(Tensor x) -> Tensor", op.softmax, like_the_first, ["x"])
log_softmax = define("log_softmax(Tensor x) -> Tensor", op.log_softmax, like_the_first, ["x"])
gelu = define('gelu(Tensor x, str approximate="none") -> Tensor', op.gelu, like_the_first, ["x"])
silu = define("silu(Tensor x) -> Tensor", op.silu, like_the_first, ["x"])
layer_norm = define(
    "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor",
    op.layer_norm,
    like_the_first,
    ["x"],
)
rms_norm = define(
    "rms_norm(Tensor x, Tensor? weight=None, float eps=1e-06) -> Tensor", op.rms_norm, like_the_first, ["x"]
)
matmul = define("matmul(Tensor a, Tensor b) -> Tensor", op.matmul, torch.matmul)
flash_attention = define(
    "flash_attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool causal=False, float? scale=None) -> Tensor",
    _attention,
    _attended,
    ["q", "k", "v"],
)
rope = define("rope(Tensor x, float theta=10000.0) -> Tensor", _rope, like_the_first)
