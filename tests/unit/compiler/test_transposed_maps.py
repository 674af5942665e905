"""Maps whose operands lie in another order than the result: compiled for this machine, and interpreted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tests.property.checking import evaluated
from tests.unit.compiler.interpreting import interpreted
from tests.whole import examples

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int32, torch.int64)
SIDES = st.sampled_from((1, 2, 3, 7, 16, 17, 33, 64))


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small integers, which every dtype holds and adds exactly."""
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=examples(6, 12))
@given(st.lists(SIDES, min_size=2, max_size=3), st.randoms(use_true_random=False), st.sampled_from(DTYPES))
def test_permuted_beside_contiguous(shape: list[int], random: object, dtype: torch.dtype) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    x = numbers(tuple(shape), dtype, 1).permute(order)
    y = numbers(tuple(x.shape), dtype, 2)
    result = op.add(x, y)
    assert torch.equal(interpreted(op.add(x, y)), x + y)
    assert torch.equal(evaluated(result), x + y)


@pytest.mark.parametrize("shape", [(64, 48), (65, 47), (3, 100), (100, 3), (1, 40), (17, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_transposed_operands_and_a_vector(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, y = numbers(shape, dtype, 1).T, numbers((shape[0], shape[1] + 2), dtype, 2)[:, 1:-1].T
    z, v = numbers((shape[1], shape[0]), dtype, 3), numbers((shape[0],), dtype, 4)
    expected = x + y + z + v
    assert torch.equal(evaluated(op.tensor(x) + y + z + v), expected)


def test_booleans_nan_and_inf_are_turned_as_they_are() -> None:
    x = torch.randn(50, 35)
    x[3, 4], x[49, 34], x[0, 0] = float("nan"), float("inf"), float("-inf")
    y = torch.zeros(35, 50)
    torch.testing.assert_close(evaluated(op.tensor(x.T) + y), x.T + y, rtol=0, atol=0, equal_nan=True)
    flags = x > 0
    assert torch.equal(evaluated(op.where(flags.T, op.tensor(y), 1.0)), torch.where(flags.T, y, torch.ones(())))


@pytest.mark.parametrize("strided", [False, True])
def test_large_results_that_bypass_the_caches(strided: bool) -> None:
    x = numbers((3001, 3000 + strided), torch.float32, 1)[:, :3000].T
    y = numbers((3000, 3001), torch.float32, 2)
    result = op.add(x, y).pin(nontemporal=True)
    assert torch.equal(result.torch(), x + y)


def test_a_square_of_a_matrix_and_its_transpose() -> None:
    x = torch.randn(90, 90)
    assert torch.equal(evaluated(op.tensor(x) + op.transpose(op.tensor(x))), x + x.T)


def test_on_the_gpu_interpreter_too() -> None:
    x, y = numbers((20, 33), torch.float32, 1), numbers((33, 20), torch.float32, 2)
    result = op.transpose(op.tensor(x, device="interpreter")) + op.tensor(y, device="interpreter")
    assert torch.equal(result.torch(), x.T + y)
