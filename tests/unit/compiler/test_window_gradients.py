"""Gradients of reductions over windows, against torch's."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from tessera import grad, op
from tests.unit.compiler.test_windows import Layout, arranged, close, normal


@pytest.mark.parametrize("convolution", [op.depthwise_conv2d, partial(op.conv2d, groups=3)])
def test_gradients_follow_a_weight_as_torch_has_it(convolution: Any) -> None:
    x, weight = normal(2, 3, 6, 5).double(), normal(3, 1, 3, 2).double().requires_grad_()
    (wanted,) = torch.autograd.grad(functional.conv2d(x, weight, padding=1, groups=3).sum(), (weight,))
    taps = op.tensor(weight.detach())
    close(grad.vjp(convolution(x, taps, padding=1), [taps])[0], wanted, 1e-10)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("options", [(2,), (3, 2, 1), ((3, 2), (1, 2), 1, 2, True)])
def test_the_first_of_the_largest_elements_of_a_window_takes_its_cotangent(layout: Layout, options: Any) -> None:
    x = normal(2, 3, 7, 8).relu().double()  # many zeros, which are equal
    x[0, 0, :4, :4], x[0, 1, 2, 3], x[0, 2, 5, 6] = -math.inf, math.inf, math.nan
    x.requires_grad_()
    expected = functional.max_pool2d(x, *options)
    cotangent = normal(*expected.shape).double()
    (wanted,) = torch.autograd.grad(expected, (x,), cotangent)
    image = op.tensor(arranged(x.detach(), layout))
    (found,) = grad.vjp(op.max_pool2d(image, *options, layout=layout), [image], arranged(cotangent, layout))
    close(found, arranged(wanted, layout), 1e-12)


def test_the_gradient_of_a_max_pool_has_a_gradient() -> None:
    x = normal(1, 2, 5, 6).double()

    def slope(x: Any) -> Any:
        return (grad.grad(lambda x: (op.max_pool2d(x, 3, 2, 1) ** 3).sum())(x) ** 2).sum()

    image = x.clone().requires_grad_()
    (first,) = torch.autograd.grad((functional.max_pool2d(image, 3, 2, 1) ** 3).sum(), image, create_graph=True)
    (wanted,) = torch.autograd.grad((first**2).sum(), image)
    close(grad.grad(slope)(x), wanted, 1e-9)
