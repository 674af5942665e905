"""Operators over tensors that torch follows: part of its graph, its transforms and its fake tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from tessera import op

Function = Callable[..., Tensor]


def _softmax(x: Tensor, w: Tensor) -> Tensor:
    return op.softmax(op.matmul(x, w) * 2.0, -1).torch()


def _softmax_by_torch(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax((x @ w) * 2, -1)


def test_gradients_to_second_order_are_torch_s() -> None:
    x, w = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 5), (5, 3)))
    cotangent = torch.randn(4, 3, dtype=torch.float64)
    both = []
    for function in (_softmax, _softmax_by_torch):
        first = torch.autograd.grad(function(x, w), (x, w), cotangent, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].sum(), (x, w))
        both.append((first, second))
    torch.testing.assert_close(*both)
    assert torch.autograd.gradcheck(_softmax, (x, w))


def test_a_value_that_was_evaluated_on_the_way_stays_in_the_graph() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    y = op.exp(x)
    y.eval()
    torch.autograd.backward(op.sum(y * y.T.T).torch())
    torch.testing.assert_close(x.grad, 2 * torch.exp(2 * x.detach()))


def test_operators_are_layers_between_torch_s() -> None:
    layer = torch.nn.Linear(5, 6)
    found, expected = (
        torch.autograd.grad(activation(layer(torch.ones(2, 5))).square().sum(), list(layer.parameters()))
        for activation in (lambda x: op.gelu(x).torch(), torch.nn.functional.gelu)
    )
    torch.testing.assert_close(found, expected)


def test_what_has_no_gradient_is_in_no_graph() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    assert torch.equal(op.argmax(x, 1).torch(), x.argmax(1))
    assert op.sum(x).item() == pytest.approx(float(x.sum()))
    with torch.no_grad():
        assert not op.exp(x).torch().requires_grad


def test_a_write_before_the_gradient_is_torch_s_error() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x * 1
    result = op.exp(y).torch()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(result.sum())


def _scalar(x: Tensor) -> Tensor:
    return op.sum(op.tanh(x) * x).torch()


def _scalar_by_torch(x: Tensor) -> Tensor:
    return (torch.tanh(x) * x).sum()


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": grad,
    "grad of grad": lambda f: grad(lambda x: grad(f)(x).sum()),
    "vmap": vmap,
    "vmap of grad": lambda f: vmap(grad(f)),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(x).sum()),
    "vmap along columns": lambda f: vmap(f, in_dims=1),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(name: str) -> None:
    x = torch.randn(3, 5) if "vmap" in name else torch.randn(5)
    transform = TRANSFORMS[name]
    torch.testing.assert_close(transform(_scalar)(x), transform(_scalar_by_torch)(x))


def test_fake_tensors_give_fake_results() -> None:
    with torch._subclasses.fake_tensor.FakeTensorMode():
        found = op.softmax(op.matmul(torch.empty(3, 4), torch.empty(4, 5)), -1).torch()
    assert isinstance(found, torch._subclasses.fake_tensor.FakeTensor)
    assert (found.shape, found.dtype) == ((3, 5), torch.float32)
