"""EfficientNet (Tan and Le, 2019): MBConv blocks with silu; the gate of a block multiplies what a convolution reads."""

from __future__ import annotations

import pytest

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, image

pytestmark = pytest.mark.whole  # ResNet, ConvNeXt and UNet show most of it


def _gated(w: Weights, x: Tensor) -> Tensor:
    channels = x.shape[1]
    squeezed = op.silu(op.conv2d(op.mean(x, (2, 3), True), w(3, channels, 1, 1), w.vector(3)))
    result: Tensor = op.sigmoid(op.conv2d(squeezed, w(channels, 3, 1, 1), w.vector(channels))) * x
    return result


def _gated_by_means(w: Weights, x: Tensor) -> Tensor:
    """The gate without weights: a channel's own mean."""
    result: Tensor = op.mean(x, (2, 3), True) * x
    return result


def _block(w: Weights, x: Tensor, wide: int, kernel: int, stride: int) -> Tensor:
    inner = op.silu(op.conv2d(x, w(wide, x.shape[1], 1, 1), w.vector(wide)))
    spread = op.conv2d(inner, w(wide, 1, kernel, kernel), stride=stride, padding=kernel // 2, groups=wide)
    return op.conv2d(_gated(w, op.silu(spread)), w(x.shape[1], wide, 1, 1), w.vector(x.shape[1]))


def efficientnet(w: Weights, x: Tensor) -> Tensor:
    """Images (n, 3, height, width) to logits (n, 5)."""
    x = op.conv2d(x, w(5, 3, 3, 3), w.vector(5), stride=2, padding=1)
    x = x + _block(w, x, 7, 3, 1)
    x = _block(w, x, 6, 5, 2)
    x = op.conv2d(_gated_by_means(w, op.conv2d(x, w(6, 5, 1, 1))), w(4, 6, 1, 1))
    return op.matmul(op.mean(op.silu(x), (2, 3)), w(4, 5))


@pytest.mark.parametrize(("batch", "layout"), [(1, "first"), (3, "last")])
def test_result_and_every_node_equal_float64(batch: int, layout: str) -> None:
    check(efficientnet(Weights(), op.tensor(image(batch, 3, 8, layout))), alone=layout == "last")


@pytest.mark.parametrize(("batch", "layout"), [(1, "last"), (3, "first")])
def test_result_equals_float64(batch: int, layout: str) -> None:
    check(efficientnet(Weights(), op.tensor(image(batch, 3, 8, layout))), nodes=False)
