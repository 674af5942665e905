"""The norm of a product's rows is computed while they are packed: one kernel, with the result of the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import numerics, op
from tessera.compiler import pipeline
from tessera.compiler.decompose import cases
from tessera.handle import Tensor
from tessera.scheduling.families import registry
from tests.whole import examples

NORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., torch.Tensor]]] = {
    "rms_norm": (op.rms_norm, lambda x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)),
    "layer_norm": (op.layer_norm, lambda x, w: torch.nn.functional.layer_norm(x, x.shape[-1:], w)),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel is expected to be faster as several."""
    listed = registry.decompositions
    monkeypatch.setattr(
        cases, "decompositions", lambda family, when: [each for each in listed(family, when) if each.pays is None]
    )
    pipeline.forget_plans()
    yield
    pipeline.forget_plans()


def launches(tensor: Tensor) -> list[str]:
    pipeline.plan(tensor.structure)
    return [kernel.subject.item.name.rsplit("_", 1)[0] for kernel in pipeline.launched(tensor.structure)]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape) * 3 + 1).to(dtype)


@pytest.mark.usefixtures("always")
@settings(max_examples=examples(13, 25), deadline=None)
@given(st.sampled_from(list(NORMS)), st.integers(1, 40), st.integers(1, 300), st.integers(9, 70), st.booleans())
def test_a_norm_and_a_product_are_one_kernel(norm: str, m: int, k: int, n: int, constant: bool) -> None:
    ours, reference = NORMS[norm]
    x, scale, weights, bias = normal(m, k), normal(k), normal(k, n), normal(n)
    second = op.constant(weights) if constant else weights
    result = op.relu(op.matmul(ours(x, scale), second) + bias)
    assert launches(result) == [f"{norm}_matmul_add_relu"]
    expected = torch.relu(reference(x.double(), scale.double()) @ weights.double() + bias.double())
    torch.testing.assert_close(result.torch().double(), expected, rtol=1e-4, atol=1e-4 * k)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_rounded_as_if_stored(norm: str, dtype: torch.dtype) -> None:
    ours, reference = NORMS[norm]
    x, scale, weights = normal(33, 130, dtype=dtype), normal(130, dtype=dtype), normal(130, 50, dtype=dtype)
    for second in (weights, op.constant(weights)):
        result = op.matmul(ours(x, scale), second)
        assert len(launches(result)) == 1
        expected = reference(x.double(), scale.double()).to(dtype).double() @ weights.double()
        close = 1e-9 if dtype is torch.float64 else 2e-2
        torch.testing.assert_close(result.torch().double(), expected, rtol=close, atol=close * 30)


@pytest.mark.usefixtures("always")
def test_operands_lie_as_they_like() -> None:
    x, weights = normal(3, 5, 77), normal(40, 77)
    batched = op.matmul(op.layer_norm(x), op.transpose(op.tensor(weights)))
    expected = torch.nn.functional.layer_norm(x.double(), (77,)) @ weights.double().T
    torch.testing.assert_close(batched.torch().double(), expected, rtol=1e-4, atol=1e-3)
    turned = normal(77, 20)
    result = op.matmul(op.rms_norm(turned.T), weights.T)
    expected = torch.nn.functional.rms_norm(turned.T.double(), (77,), eps=1e-6) @ weights.double().T
    torch.testing.assert_close(result.torch().double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("always")
def test_nan_and_inf_stay_in_their_rows() -> None:
    x = normal(30, 100)
    x[3, 7], x[20, 99] = float("nan"), float("inf")
    found = op.matmul(op.layer_norm(x), normal(100, 40)).torch()
    assert found.isnan().any(1).nonzero().flatten().tolist() == [3, 20]
    assert found.isnan().all(1).sum() == 2


@pytest.mark.usefixtures("always")
def test_no_rows_no_columns_and_rows_of_zeros() -> None:
    assert op.matmul(op.rms_norm(torch.ones(0, 8)), torch.ones(8, 20)).torch().shape == (0, 20)
    assert op.matmul(op.rms_norm(torch.ones(4, 8)), torch.ones(8, 0)).torch().shape == (4, 0)
    assert torch.equal(op.matmul(op.rms_norm(torch.zeros(4, 8)), torch.ones(8, 20)).torch(), torch.zeros(4, 20))


def apart(x: torch.Tensor, weights: torch.Tensor) -> list[list[str]]:
    """Products that do not normalize on the way: two products of one norm, transposed rows, softmax, what is pinned."""
    row = op.rms_norm(x)
    return [
        launches(op.matmul(row, weights) + op.matmul(row, weights * 2)),
        launches(op.matmul(op.transpose(row), weights[: x.shape[0]])),
        launches(op.matmul(op.softmax(x), weights)),
        launches(op.matmul(op.rms_norm(x), weights).pin(unroll=2)),
        launches(op.matmul(op.rms_norm(x), weights[:, :1])),
    ]


def test_what_is_normalized_before_the_product() -> None:
    for made in apart(normal(40, 64), normal(64, 30)):
        assert made[0].startswith(("rms_norm", "softmax"))
        assert any(name.startswith("matmul") for name in made)


@pytest.mark.parametrize("mode", ["deterministic", "strict"])
def test_a_fixed_order_of_sums_keeps_the_norm_apart(mode: Literal["deterministic", "strict"]) -> None:
    with numerics.policy(mode):
        assert launches(op.matmul(op.rms_norm(normal(40, 64)), normal(64, 30))) == ["rms_norm", "matmul"]


def test_many_rows_of_many_columns_are_normalized_once() -> None:
    """Several blocks of columns: the model counts that each would normalize all rows anew."""
    weights = op.constant(torch.randn(64, 9000))
    assert launches(op.matmul(op.layer_norm(normal(600, 64)), weights))[0] == "layer_norm"


def test_on_other_devices_the_norm_is_a_kernel_before_the_product() -> None:
    x, weights = normal(20, 48), normal(48, 32)
    result = op.matmul(op.rms_norm(op.tensor(x).to("interpreter")), op.tensor(weights).to("interpreter"))
    expected = torch.nn.functional.rms_norm(x.double(), (48,), eps=1e-6) @ weights.double()
    torch.testing.assert_close(result.to("cpu").torch().double(), expected, rtol=1e-3, atol=1e-3)
