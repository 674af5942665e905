"""ResNet-18 (He et al., 2015): a stem with a pool, blocks with strides and 1x1 ways around them; and its gradients."""

from __future__ import annotations

import pytest

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, check_gradients, image


def _norm(w: Weights, x: Tensor) -> Tensor:
    channels = x.shape[1]
    return op.batch_norm(x, w.vector(channels), w.vector(channels), w.vector(channels), w.vector(channels))


def _block(w: Weights, x: Tensor, out: int, stride: int) -> Tensor:
    inner = op.relu(_norm(w, op.conv2d(x, w(out, x.shape[1], 3, 3), stride=stride, padding=1)))
    around = x if stride == 1 else _norm(w, op.conv2d(x, w(out, x.shape[1], 1, 1), stride=stride))
    return op.relu(_norm(w, op.conv2d(inner, w(out, out, 3, 3), padding=1)) + around)


def resnet(w: Weights, x: Tensor) -> Tensor:
    """Images (n, 3, height, width) to logits (n, 5)."""
    x = op.relu(_norm(w, op.conv2d(x, w(4, 3, 5, 5), stride=2, padding=2)))
    x = op.max_pool2d(x, 3, 2, 1)
    for out, stride in ((4, 1), (6, 2), (8, 2)):
        x = _block(w, x, out, stride)
    result: Tensor = op.matmul(op.mean(x, (2, 3)), w(8, 5)) + w.vector(5)
    return result


@pytest.mark.parametrize(("batch", "layout"), [(1, "first"), (3, "last")])
def test_result_and_every_node_equal_float64(batch: int, layout: str) -> None:
    check(resnet(Weights(), op.tensor(image(batch, 3, 16, layout))), alone=layout == "last")


@pytest.mark.parametrize(("batch", "layout"), [(1, "last"), (3, "first")])
def test_result_equals_float64(batch: int, layout: str) -> None:
    check(resnet(Weights(), op.tensor(image(batch, 3, 16, layout))), nodes=False)


@pytest.mark.parametrize("layout", ["first", "last"])
def test_gradients(layout: str) -> None:
    check_gradients(resnet, image(2, 3, 16, layout))
