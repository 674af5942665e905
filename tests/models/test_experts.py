"""A mixture of experts (Shazeer et al., 2017): the two likeliest of four SwiGLU experts, by topk and gather."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients

WIDTH, EXPERTS, CHOSEN = 8, 4, 2


def experts(w: Weights, x: Tensor) -> Tensor:
    """Tokens (n, length, 8) and what the chosen experts make of each."""
    rows = op.reshape(x, (-1, WIDTH))
    shares, chosen = op.topk(op.softmax(op.matmul(rows, w(WIDTH, EXPERTS))), CHOSEN)
    shares = shares / op.sum(shares, -1, True)
    gate, up = op.split(op.einsum("td,edf->tef", rows, w(EXPERTS, WIDTH, 12)), 6, -1)
    made = op.einsum("tef,efd->ted", op.silu(gate) * up, w(EXPERTS, 6, WIDTH))
    places = op.broadcast_to(op.unsqueeze(chosen, -1), (rows.shape[0], CHOSEN, WIDTH))
    mixed = op.sum(op.gather(made, 1, places) * op.unsqueeze(shares, -1), 1)
    result: Tensor = x + op.reshape(mixed, x.shape)
    return result


def tokens(batch: int) -> torch.Tensor:
    """Embedded tokens."""
    return torch.randn(batch, 5, WIDTH, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("batch", [1, 3])
def test_result_and_every_node_equal_float64(batch: int) -> None:
    check(experts(Weights(), op.tensor(tokens(batch))), alone=batch == 3)


def test_gradients() -> None:
    check_gradients(experts, tokens(3))
