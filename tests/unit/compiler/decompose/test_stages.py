"""Kernels of maps and reductions run in stages where the model expects that to be faster, with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import numerics, op
from tessera.compiler import pipeline
from tessera.compiler.device import compilers
from tessera.handle import Tensor
from tessera.scheduling.families.rows import stages
from tessera.typing import ArrayLike
from tests.whole import examples


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel that has stages runs in them."""
    monkeypatch.setattr(stages, "CONVINCING", 0.0)
    monkeypatch.setattr(stages, "WORTH_COMPILING_S", -1.0)
    compilers.kernel_compiler().forget_schedules()
    pipeline.forget_plans()
    yield
    compilers.kernel_compiler().forget_schedules()
    pipeline.forget_plans()


def launches(tensor: Tensor) -> list[str]:
    pipeline.plan(tensor.structure)
    return [kernel.subject.item.name.rsplit("_", 1)[0] for kernel in pipeline.launched(tensor.structure)]


def centred(x: ArrayLike, axis: int = 0) -> Tensor:
    """A dear chain of maps, less its means."""
    chain = op.tanh(op.gelu(op.silu(x)))
    return op.abs(chain - op.mean(chain, axis=axis, keepdims=True))


def centred_reference(x: torch.Tensor, axis: int = 0) -> torch.Tensor:
    chain = torch.tanh(torch.nn.functional.gelu(torch.nn.functional.silu(x.double())))
    return (chain - chain.mean(axis, keepdim=True)).abs()


def test_a_dear_chain_is_made_once_for_the_means_of_its_columns_and_for_the_result() -> None:
    assert launches(centred(torch.randn(500, 200))) == ["silu_gelu_tanh", "mean", "sub_abs"]


def test_a_cheap_chain_is_made_twice_rather_than_stored() -> None:
    x = op.relu(torch.randn(500, 200))
    assert len(launches(x - op.mean(x, axis=0, keepdims=True))) == 1


def test_few_elements_are_one_kernel() -> None:
    assert len(launches(centred(torch.randn(7, 5)))) == 1


def test_rows_that_keep_their_chain_are_one_kernel() -> None:
    assert len(launches(op.softmax(op.gelu(torch.randn(500, 1000))))) == 1


def test_short_rows_under_a_long_chain_are_two_kernels() -> None:
    x = op.tensor(torch.randn(4096, 17))
    for _ in range(4):
        x = op.gelu(op.tanh(x) + 0.5)
    made = launches(op.softmax(x))
    assert len(made) == 2
    assert made[-1] == "softmax"


@pytest.mark.parametrize("mode", ["deterministic", "strict"])
def test_a_fixed_order_of_sums_does_not_ask_the_model(mode: Literal["deterministic", "strict"]) -> None:
    x = torch.randn(500, 200)
    with numerics.policy(mode):
        assert len(launches(centred(x))) == 1


def test_what_users_pin_is_one_kernel() -> None:
    assert len(launches(centred(torch.randn(500, 200)).pin(fusion=True))) == 1


@pytest.mark.usefixtures("always")
@settings(max_examples=examples(8, 15), deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 1))
def test_stages_give_what_the_operators_give(rows: int, columns: int, axis: int) -> None:
    x = torch.randn(rows, columns)
    torch.testing.assert_close(centred(x, axis).torch().double(), centred_reference(x, axis), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("always")
def test_stages_pass_nan_on_and_take_transposed_operands() -> None:
    x = torch.randn(37, 130)
    x[3, 7] = float("nan")
    found = centred(x.T).torch()
    assert found.isnan().any(0).nonzero().tolist() == [[3]]
    torch.testing.assert_close(found.double(), centred_reference(x.T), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.usefixtures("always")
def test_reductions_one_after_the_other_are_stages_of_their_own() -> None:
    x = torch.randn(33, 65)
    y = op.silu(op.layer_norm(op.gelu(op.softmax(op.silu(x)))))
    assert launches(y) == ["silu", "softmax", "gelu", "layer_norm", "silu"]
    wanted = torch.nn.functional.gelu(torch.softmax(torch.nn.functional.silu(x.double()), -1))
    wanted = torch.nn.functional.silu(torch.nn.functional.layer_norm(wanted, (65,)))
    torch.testing.assert_close(y.torch().double(), wanted, rtol=1e-3, atol=1e-4)
