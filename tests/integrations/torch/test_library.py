"""Operators of Tessera's as torch's own: torch's checks of them, compiled and exported, and those that users add."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import tessera.torch
from tessera import op
from tessera.errors import ArgumentError
from tessera.torch import ops


def normal(*shape: int) -> Tensor:
    """A tensor whose gradient is asked for."""
    return torch.randn(shape, requires_grad=True)


CASES: dict[str, tuple[Any, Callable[..., Tensor], tuple[Any, ...]]] = {
    "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), (normal(3, 5),)),
    "log_softmax": (ops.log_softmax, lambda x: torch.log_softmax(x, -1), (normal(3, 5),)),
    "gelu": (ops.gelu, lambda x, a: F.gelu(x, approximate=a), (normal(3, 5), "tanh")),
    "silu": (ops.silu, F.silu, (normal(3, 5),)),
    "layer_norm": (ops.layer_norm, lambda x, w, b: F.layer_norm(x, (5,), w, b), (normal(3, 5), normal(5), normal(5))),
    "rms_norm": (ops.rms_norm, lambda x, w: F.rms_norm(x, (5,), w, 1e-6), (normal(3, 5), normal(5))),
    "rms_norm alone": (ops.rms_norm, lambda x: F.rms_norm(x, (5,), None, 1e-6), (normal(3, 5),)),
    "matmul": (ops.matmul, torch.matmul, (normal(3, 5), normal(5, 4))),
    "flash_attention": (
        ops.flash_attention,
        F.scaled_dot_product_attention,
        (normal(2, 6, 8), normal(2, 7, 8), normal(2, 7, 8)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    function, reference, arguments = CASES[name]
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    cotangent = torch.randn_like(reference(*arguments))
    torch.testing.assert_close(function(*arguments), reference(*arguments))
    found, expected = (torch.autograd.grad(each(*arguments), tensors, cotangent) for each in (function, reference))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["rms_norm", "matmul", "flash_attention", "gelu"])
def test_torch_s_own_checks(name: str) -> None:
    function, _, arguments = CASES[name]
    torch.library.opcheck(function, arguments)


@pytest.mark.parametrize("name", ["rms_norm", "matmul"])
def test_batches(name: str) -> None:
    function, reference, (x, *others) = CASES[name]
    batch = torch.randn(4, *x.shape)
    in_dims = (0, *[None] * len(others))
    torch.testing.assert_close(
        torch.vmap(function, in_dims)(batch, *others), torch.vmap(reference, in_dims)(batch, *others)
    )


class Normed(nn.Module):
    """A layer with an operator of Tessera's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(8, 8), nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = ops.rms_norm(self.layer(x), self.weight) * 2
        return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tessera"])
def test_one_graph_in_training(backend: str) -> None:
    torch._dynamo.reset()
    model, x = Normed(), torch.randn(3, 8)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    found, expected = (
        torch.autograd.grad(each(x).square().sum(), list(model.parameters())) for each in (compiled, model)
    )
    torch.testing.assert_close(found, expected)


def test_export_with_a_dynamic_extent_saved_and_loaded() -> None:
    model = Normed().eval()
    program = torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert any(node.target is ops.rms_norm for node in program.graph.nodes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    x = torch.randn(7, 8)
    torch.testing.assert_close(loaded(x), model(x))


@tessera.torch.custom_op
def halved_sigmoid(x: Tensor, factor: float) -> Tensor:
    """An operator of the user's."""
    return cast(Tensor, op.sigmoid(x) * (factor / 2))


def _gram(x: Tensor) -> Any:
    return op.matmul(op.transpose(x), x)  # a view of the argument, which the gradient follows


def test_gradients_through_views_of_an_argument() -> None:
    gram = tessera.torch.custom_op(
        _gram, schema="gram(Tensor x) -> Tensor", fake=lambda x: x.new_empty((x.shape[1], x.shape[1]))
    )
    x, cotangent = normal(3, 4), torch.randn(4, 4)
    found, expected = (torch.autograd.grad(each(x), x, cotangent) for each in (gram, lambda x: x.T @ x))
    torch.testing.assert_close(found, expected)


def test_an_operator_of_a_user() -> None:
    x = normal(3, 4)
    torch.testing.assert_close(halved_sigmoid(x, 3.0), torch.sigmoid(x) * 1.5)
    torch.library.opcheck(halved_sigmoid, (x, 3.0))
    with pytest.raises(ArgumentError, match="there already"):
        tessera.torch.custom_op(lambda x: x, schema="rms_norm(Tensor x) -> Tensor")
