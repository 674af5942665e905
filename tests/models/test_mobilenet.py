"""MobileNetV3 (Howard et al., 2019): inverted residuals, depthwise windows, squeeze-and-excitation, hardswish."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients, image

pytestmark = pytest.mark.whole  # ResNet, ConvNeXt and UNet show most of it


def _norm(w: Weights, x: Tensor) -> Tensor:
    channels = x.shape[1]
    return op.batch_norm(x, w.vector(channels), w.vector(channels), w.vector(channels), w.vector(channels))


def _excited(w: Weights, x: Tensor) -> Tensor:
    """Each channel times a gate that all channels' means decide."""
    channels = x.shape[1]
    squeezed = op.relu(op.conv2d(op.mean(x, (2, 3), True), w(2, channels, 1, 1), w.vector(2)))
    gate = op.conv2d(squeezed, w(channels, 2, 1, 1), w.vector(channels))
    result: Tensor = x * op.clamp(gate + 3.0, 0.0, 6.0) / 6.0
    return result


def _block(w: Weights, x: Tensor, wide: int, out: int, kernel: int, stride: int) -> Tensor:
    inner = op.hardswish(_norm(w, op.conv2d(x, w(wide, x.shape[1], 1, 1))))
    spread = op.depthwise_conv2d(inner, w(wide, 1, kernel, kernel), stride=stride, padding=kernel // 2)
    narrow = _norm(w, op.conv2d(_excited(w, op.hardswish(_norm(w, spread))), w(out, wide, 1, 1)))
    return x + narrow if stride == 1 and x.shape[1] == out else narrow


def mobilenet(w: Weights, x: Tensor) -> Tensor:
    """Images (n, 3, height, width) to logits (n, 5)."""
    x = op.hardswish(_norm(w, op.conv2d(x, w(6, 3, 3, 3), stride=2, padding=1)))
    x = _block(w, x, 10, 6, 3, 1)
    x = _block(w, x, 12, 7, 5, 2)
    pooled = op.mean(op.hardswish(_norm(w, op.conv2d(x, w(9, 7, 1, 1)))), (2, 3))
    result: Tensor = op.matmul(op.hardswish(op.matmul(pooled, w(9, 8)) + w.vector(8)), w(8, 5)) + w.vector(5)
    return result


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("batch", [1, 3])
def test_result_and_every_node_equal_float64(batch: int, layout: str) -> None:
    check(mobilenet(Weights(), op.tensor(image(batch, 3, 9, layout))), alone=batch == 3 and layout == "last")


def test_bf16() -> None:
    check(mobilenet(Weights(torch.bfloat16), op.tensor(image(3, 3, 9, "last", torch.bfloat16))), nodes=False)


def test_gradients() -> None:
    check_gradients(mobilenet, image(1, 3, 9, "last"))
