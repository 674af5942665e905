"""A UNet with group norm, as diffusion models have it: ways across, nearest upsampling, attention of pixels."""

from __future__ import annotations

import pytest

from tessera import op
from tessera.handle import Tensor
from tests.models.witness import Weights, check, image


def _group_norm(w: Weights, x: Tensor, groups: int) -> Tensor:
    count, channels, height, width = x.shape
    grouped = op.reshape(x, (count, groups, -1))
    normed = (grouped - op.mean(grouped, -1, True)) * op.rsqrt(op.var(grouped, -1, correction=0, keepdims=True) + 1e-3)
    gain, offset = (op.reshape(w.vector(channels), (channels, 1, 1)) for _ in range(2))
    result: Tensor = op.reshape(normed, (count, channels, height, width)) * gain + offset
    return result


def _residual(w: Weights, x: Tensor, out: int, time: Tensor) -> Tensor:
    inner = op.conv2d(op.silu(_group_norm(w, x, 2)), w(out, x.shape[1], 3, 3), w.vector(out), padding=1)
    shift = op.matmul(op.silu(time), w(time.shape[-1], out))
    inner = _group_norm(w, inner + op.reshape(shift, (-1, out, 1, 1)), 2)
    around = x if x.shape[1] == out else op.conv2d(x, w(out, x.shape[1], 1, 1))
    result: Tensor = around + op.conv2d(op.silu(inner), w(out, out, 3, 3), padding=1)
    return result


def _attended(w: Weights, x: Tensor) -> Tensor:
    count, channels, height, width = x.shape
    parts = op.conv2d(_group_norm(w, x, 2), w(3 * channels, channels, 1, 1))
    q, k, v = op.split(op.reshape(parts, (count, 3 * channels, height * width)), channels, 1)
    scores = op.softmax(op.matmul(op.swapaxes(q, 1, 2), k) * channels**-0.5)
    mixed = op.reshape(op.matmul(v, op.swapaxes(scores, 1, 2)), x.shape)
    result: Tensor = x + op.conv2d(mixed, w(channels, channels, 1, 1))
    return result


def _twice_as_large(x: Tensor) -> Tensor:
    count, channels, height, width = x.shape
    spread = op.broadcast_to(
        op.reshape(x, (count, channels, height, 1, width, 1)), (count, channels, height, 2, width, 2)
    )
    return op.reshape(spread, (count, channels, 2 * height, 2 * width))


def unet(w: Weights, x: Tensor) -> Tensor:
    """Noisy images (n, 3, height, width) to their noise."""
    time = op.reshape(op.sin(op.arange(x.shape[0] * 4, dtype="fp32") * 0.7), (x.shape[0], 4))
    first = _residual(w, op.conv2d(x, w(4, 3, 3, 3), padding=1), 4, time)
    second = _attended(w, _residual(w, op.conv2d(first, w(6, 4, 3, 3), stride=2, padding=1), 6, time))
    joined = op.concat([op.conv2d(_twice_as_large(second), w(4, 6, 3, 3), padding=1), first], 1)
    last = _residual(w, joined, 6, time)
    return op.conv2d(op.silu(_group_norm(w, last, 3)), w(3, 6, 3, 3), w.vector(3), padding=1)


@pytest.mark.parametrize(("batch", "layout"), [(1, "first"), (3, "last")])
def test_result_and_every_node_equal_float64(batch: int, layout: str) -> None:
    check(unet(Weights(), op.tensor(image(batch, 3, 6, layout))), alone=layout == "last")
