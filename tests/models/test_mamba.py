"""Mamba (Gu and Dao, 2023): a selective state space, its recurrence unrolled, behind a causal window."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients

WIDTH, WIDE, STATE = 5, 6, 3


def _scanned(w: Weights, x: Tensor) -> Tensor:
    """The state space over x, [n, length, wide], step after step."""
    delta = op.softplus(op.matmul(x, w(WIDE, WIDE)) + w.vector(WIDE))
    into, out_of = op.matmul(x, w(WIDE, STATE)), op.matmul(x, w(WIDE, STATE))
    rates = -op.exp(w(WIDE, STATE))
    state: Tensor | None = None
    steps = []
    for step in range(x.shape[1]):
        size = op.unsqueeze(delta[:, step], -1)
        added = size * op.unsqueeze(into[:, step], 1) * op.unsqueeze(x[:, step], -1)
        state = added if state is None else op.exp(size * rates) * state + added
        steps.append(op.sum(state * op.unsqueeze(out_of[:, step], 1), -1))
    result: Tensor = op.stack(steps, 1) + x * w.vector(WIDE)
    return result


def _block(w: Weights, x: Tensor) -> Tensor:
    both = op.matmul(op.rms_norm(x, w.vector(WIDTH)), w(WIDTH, 2 * WIDE))
    inner, gate = op.split(both, WIDE, -1)
    columns = op.pad(op.swapaxes(inner, 1, 2), (2, 0))
    image = op.reshape(columns, (x.shape[0], WIDE, 1, -1))
    windowed = op.silu(op.depthwise_conv2d(image, w(WIDE, 1, 1, 3), w.vector(WIDE)))
    rows = op.swapaxes(op.squeeze(windowed, 2), 1, 2)
    result: Tensor = x + op.matmul(_scanned(w, rows) * op.silu(gate), w(WIDE, WIDTH))
    return result


def mamba(w: Weights, x: Tensor) -> Tensor:
    """Embedded tokens (n, length, 5) to logits (n, length, 7)."""
    x = _block(w, _block(w, x))
    return op.matmul(op.rms_norm(x, w.vector(WIDTH)), w(WIDTH, 7))


def tokens(batch: int, length: int = 4) -> torch.Tensor:
    """Embedded tokens."""
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("batch", [1, 3])
def test_result_and_every_node_equal_float64(batch: int) -> None:
    check(mamba(Weights(), op.tensor(tokens(batch))), alone=batch == 3)


def test_gradients() -> None:
    check_gradients(mamba, tokens(2))
