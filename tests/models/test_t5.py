"""T5 (Raffel et al., 2020): relative position biases, rms norms, no scale; an encoder, and a decoder that reads it."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients

WIDTH, HEADS = 8, 2


def _heads(x: Tensor) -> Tensor:
    count, length, width = x.shape
    return op.transpose(op.reshape(x, (count, length, HEADS, width // HEADS)), (0, 2, 1, 3))


def _attended(w: Weights, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
    q, k, v = (_heads(op.matmul(source, w(WIDTH, WIDTH))) for source in (x, memory, memory))
    scores = op.matmul(q, op.swapaxes(k, -1, -2))
    weights = op.softmax(scores if bias is None else scores + bias)
    mixed = op.reshape(op.transpose(op.matmul(weights, v), (0, 2, 1, 3)), x.shape)
    return op.matmul(mixed, w(WIDTH, WIDTH))


def _position_bias(w: Weights, length: int) -> Tensor:
    """A learned number for each head and distance, [1, heads, length, length]."""
    position = op.arange(length)
    distance = op.clamp(position - op.reshape(position, (length, 1)), -3, 3) + 3
    return op.reshape(op.transpose(op.embedding(w(7, HEADS), distance), (2, 0, 1)), (1, HEADS, length, length))


def _fed_forward(w: Weights, x: Tensor) -> Tensor:
    normed = op.rms_norm(x, w.vector(WIDTH))
    inner = op.gelu(op.matmul(normed, w(WIDTH, 12)), "tanh") * op.matmul(normed, w(WIDTH, 12))
    result: Tensor = x + op.matmul(inner, w(12, WIDTH))
    return result


def t5(w: Weights, x: Tensor) -> Tensor:
    """Embedded tokens (n, length, 8) to logits (n, length - 1, 11)."""
    length = x.shape[1]
    bias = _position_bias(w, length)
    normed = op.rms_norm(x, w.vector(WIDTH))
    x = _fed_forward(w, x + _attended(w, normed, normed, bias))
    memory = op.rms_norm(x, w.vector(WIDTH))
    y = op.tanh(x[:, 1:])
    position = op.arange(length - 1)
    hidden = op.where(op.reshape(position, (length - 1, 1)) >= position, 0.0, float("-inf"))
    normed = op.rms_norm(y, w.vector(WIDTH))
    y = y + _attended(w, normed, normed, _position_bias(w, length - 1) + hidden)
    y = _fed_forward(w, y + _attended(w, op.rms_norm(y, w.vector(WIDTH)), memory, None))
    return op.matmul(op.rms_norm(y, w.vector(WIDTH)) * WIDTH**-0.5, w(WIDTH, 11))


def tokens(batch: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Embedded tokens."""
    return torch.randn(batch, 7, WIDTH, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("batch", [1, 3])
def test_result_and_every_node_equal_float64(batch: int) -> None:
    check(t5(Weights(), op.tensor(tokens(batch))), alone=batch == 3)


def test_gradients() -> None:
    check_gradients(t5, tokens(3))
