"""Llama (Touvron et al., 2023): turned queries and keys, heads that share keys, SwiGLU."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients

WIDTH, HEAD = 8, 4


def _heads(x: Tensor, weight: Tensor) -> Tensor:
    count, length, _ = x.shape
    return op.transpose(op.reshape(op.matmul(x, weight), (count, length, -1, HEAD)), (0, 2, 1, 3))


def llama(w: Weights, x: Tensor) -> Tensor:
    """Embedded tokens (n, length, 8) to logits (n, length, 11)."""
    normed = op.rms_norm(x, w.vector(WIDTH))
    q, k = (op.rope(_heads(normed, w(WIDTH, heads * HEAD))) for heads in (4, 2))
    mixed = op.flash_attention(q, k, _heads(normed, w(WIDTH, 2 * HEAD)), causal=True)
    x = x + op.matmul(op.reshape(op.transpose(mixed, (0, 2, 1, 3)), (*x.shape[:2], 4 * HEAD)), w(4 * HEAD, WIDTH))
    normed = op.rms_norm(x, w.vector(WIDTH))
    x = x + op.matmul(op.silu(op.matmul(normed, w(WIDTH, 12))) * op.matmul(normed, w(WIDTH, 12)), w(12, WIDTH))
    return op.matmul(op.rms_norm(x, w.vector(WIDTH)), w(WIDTH, 11))


def tokens(batch: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Embedded tokens."""
    return torch.randn(batch, 5, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.mark.parametrize("batch", [1, 3])
def test_result_and_every_node_equal_float64(batch: int) -> None:
    check(llama(Weights(), op.tensor(tokens(batch))), alone=batch == 3)


def test_bf16() -> None:
    check(llama(Weights(torch.bfloat16), op.tensor(tokens(3, torch.bfloat16))), nodes=False)


def test_gradients() -> None:
    check_gradients(llama, tokens(3))
