"""ConvNeXt (Liu et al., 2022): 7x7 depthwise windows, norms over channels, products between transposes, layer scale."""

from __future__ import annotations

import pytest

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients, image


def _block(w: Weights, x: Tensor) -> Tensor:
    channels = x.shape[1]
    spread = op.depthwise_conv2d(x, w(channels, 1, 7, 7), w.vector(channels), padding=3)
    rows = op.layer_norm(op.transpose(spread, (0, 2, 3, 1)), w.vector(channels), w.vector(channels))
    inner = op.gelu(op.matmul(rows, w(channels, 2 * channels)) + w.vector(2 * channels))
    scaled = (op.matmul(inner, w(2 * channels, channels)) + w.vector(channels)) * w.vector(channels)
    result: Tensor = x + op.transpose(scaled, (0, 3, 1, 2))
    return result


def _smaller(w: Weights, x: Tensor, out: int) -> Tensor:
    channels = x.shape[1]
    centred = x - op.mean(x, 1, True)
    normed = centred * op.rsqrt(op.mean(centred * centred, 1, True) + 1e-3)
    return op.conv2d(normed * op.reshape(w.vector(channels), (1, channels, 1, 1)), w(out, channels, 2, 2), stride=2)


def convnext(w: Weights, x: Tensor) -> Tensor:
    """Images (n, 3, height, width) to logits (n, 5)."""
    x = _block(w, op.conv2d(x, w(6, 3, 4, 4), w.vector(6), stride=4))
    x = _smaller(w, x, 9)
    return op.matmul(op.layer_norm(op.mean(x, (2, 3)), w.vector(9), w.vector(9), eps=0.1), w(9, 5))


@pytest.mark.parametrize(("batch", "layout"), [(1, "first"), (3, "last")])
def test_result_and_every_node_equal_float64(batch: int, layout: str) -> None:
    check(convnext(Weights(), op.tensor(image(batch, 3, 16, layout))), alone=layout == "last")


def test_gradients() -> None:
    check_gradients(convnext, image(1, 3, 16, "first"))
