"""Convolutions whose padding lies on one side only, and prologues with operands that vary along part of the image."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn import functional

from tessera import grad, op
from tessera.ops.algebra import call
from tessera.ops.record import OPERATORS
from tests.unit.compiler.test_convolution import close, normal
from tests.whole import some

LAST = torch.channels_last


def padded(
    x: torch.Tensor, w: torch.Tensor, padding: tuple[int, int, int, int], stride: tuple[int, int] = (1, 1)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours and torch's result of an image [N, H, W, C]; `padding` is (top, left, bottom, right)."""
    ours = call("conv2d", op.tensor(x), op.tensor(w), stride=stride, padding=padding)
    return ours.torch(), OPERATORS["conv2d"].reference(
        x.double(), w.double(), stride=stride, padding=padding, dilation=(1, 1), groups=1
    )


@pytest.mark.parametrize(
    ("padding", "kind"),
    some(
        product(
            ((0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 5, 7), (0, 2, 0, 0)),
            (((1, 1), torch.float32), ((1, 1), torch.bfloat16), ((1, 2), torch.float32)),
        ),
        lambda case: case[0],
    ),
)
def test_padding_may_lie_on_one_side_alone(
    padding: tuple[int, int, int, int], kind: tuple[tuple[int, int], torch.dtype]
) -> None:
    kernel, dtype = kind
    x, w = normal(1, 4, 5, 8, dtype=dtype), normal(8, 8, *kernel, dtype=dtype)
    close(*padded(x, w, padding, (2, 3)), w[0].numel())
    close(*padded(x, w, padding), w[0].numel())


@pytest.mark.parametrize("size", [15, 16])
def test_pixels_that_a_strided_window_skips_have_no_cotangent(size: int) -> None:
    x, w = normal(1, 8, size, size), normal(8, 8, 1, 1)
    found = grad.grad(lambda x: op.conv2d(x, w, stride=2).sum())(x).torch()
    wanted = torch.zeros_like(x).double()
    wanted[:, :, ::2, ::2] = w.double().sum((0, 2, 3))[:, None, None]
    close(found, wanted, 8)


@pytest.mark.parametrize(
    ("axes", "kernel"),
    some(product(((2, 3), (1,), (1, 2), (1, 2, 3), (3,), (2,)), ((1, 1), (2, 3))), lambda case: case[0]),
)
def test_an_image_is_scaled_on_its_way_by_its_means(axes: tuple[int, ...], kernel: tuple[int, int]) -> None:
    groups, size = kernel
    x, first, w = normal(2, 4, 3, 5), normal(4, 4, 1, 1), normal(4, 4 // groups, size, size)
    y = op.conv2d(x, first)
    found = op.conv2d(op.mean(y, axes, True) * y, w, padding=size // 2, groups=groups)
    image = functional.conv2d(x.double(), first.double())
    scaled = image.mean(axes, True) * image
    close(found.torch(), functional.conv2d(scaled, w.double(), padding=size // 2, groups=groups), 64)


@pytest.mark.parametrize(
    ("shape", "groups"),
    some(product(((4, 1, 1), (2, 4, 1, 1), (2, 1, 3, 1), (2, 1, 1, 1), (5,)), (1, 2)), lambda case: case[0]),
)
def test_an_image_is_scaled_on_its_way_by_given_numbers(shape: tuple[int, ...], groups: int) -> None:
    x, scale, w = normal(2, 4, 3, 5), normal(*shape), normal(4, 4 // groups, 1, 1)
    wanted = functional.conv2d((x * scale).double(), w.double(), groups=groups)
    for image in (x, x.contiguous(memory_format=LAST)):
        close(op.conv2d(op.tensor(image) * op.tensor(scale), w, groups=groups).torch(), wanted, 16)
