"""Products by few columns, made as their transposes: right for all layouts, and fused as they were written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import Tensor, op
from tests.property.checking import evaluated
from tests.unit.compiler.interpreting import interpreted
from tests.whole import examples

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int8)


def is_turned(product: Tensor) -> bool:
    """Whether the columns of the product are rows: of dot products, or a tile of few rows on a matrix unit."""
    text = product.inspect("schedule")
    return 'order = "dots"' in text or 'micro = [16 : i64, 32 : i64], unit = "matrix"' in text


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers in memory with rows, or columns, side by side, or every third element of a row."""
    if layout == "columns":
        return x.mT.contiguous().mT
    if layout == "apart":
        return x.repeat_interleave(3, -1)[..., ::3]
    return x


LAYOUTS = st.sampled_from(("rows", "columns", "apart"))


@settings(max_examples=examples(20, 40), deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.one_of(st.integers(0, 70), st.integers(120, 300)),
    st.sampled_from(DTYPES),
    st.sampled_from(((), (2,), (3, 1))),
    LAYOUTS,
    LAYOUTS,
    st.booleans(),
)
def test_few_columns(
    m: int, n: int, k: int, dtype: torch.dtype, batch: tuple[int, ...], of_a: str, of_b: str, marked: bool
) -> None:
    generator = torch.Generator().manual_seed(m + 61 * k)
    a = laid_out((torch.randn(*batch, m, k, generator=generator) * 4).to(dtype), of_a)
    b = laid_out((torch.randn(*batch[:1], k, n, generator=generator) * 4).to(dtype), of_b)
    b = b.unsqueeze(1) if len(batch) > 1 else b
    product = op.matmul(op.constant(a) if marked else a, b)
    exact = a.double() @ b.double()
    terms = a.double().abs() @ b.double().abs()
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0
    found = evaluated(product).double()
    assert bool(((found - exact).abs() <= eps * exact.abs() + 2e-6 * terms + 1e-12).all())
    follows = evaluated(op.relu(product * 2)).double()
    assert bool(((follows - (2 * exact).relu()).abs() <= 4 * eps * exact.abs() + 4e-6 * terms + 1e-12).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 3, 4])
def test_the_tile_ir_of_turned_products(dtype: torch.dtype, columns: int) -> None:
    a, b = torch.randn(21, 140).to(dtype), torch.randn(140, columns).to(dtype).mT.contiguous().mT
    bias = torch.randn(21, 1).to(dtype)
    result = op.relu(op.matmul(a, b) + bias)
    assert is_turned(result)
    exact = (a.double() @ b.double() + bias.double()).relu()
    limit = 1e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(interpreted(result).double(), exact, rtol=limit, atol=limit)
    torch.testing.assert_close(evaluated(result).double(), exact, rtol=limit, atol=limit)


def test_what_follows_and_what_goes_before_stays_in_the_kernel() -> None:
    a, b = torch.randn(50, 260), torch.randn(260, 1)
    scale = torch.rand(260)
    result = op.relu(op.matmul(op.relu(a) * scale, b) + 1)
    text = result.inspect("schedule")
    assert text.count("tessera.schedule.kernel") == 1
    assert is_turned(result)
    exact = ((a.double().relu() * scale.double()) @ b.double() + 1).relu()
    torch.testing.assert_close(result.torch().double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_gemm_with_a_column(layout: str) -> None:
    a, b, c = laid_out(torch.randn(70, 90), layout), torch.randn(90, 1), torch.randn(70, 1)
    found = op.gemm(a, b, c, alpha=2.0, beta=-1.0).torch()
    torch.testing.assert_close(found, 2 * (a @ b) - c, rtol=1e-4, atol=1e-4)


def test_a_product_whose_tile_is_asked_for_stays_as_it_was_written() -> None:
    a, b = torch.randn(64, 300), torch.randn(300, 2)
    product = op.matmul(a, b, tile_shape=(16, 32, 128))
    assert not is_turned(product)
    torch.testing.assert_close(product.torch(), a @ b, rtol=1e-4, atol=1e-4)


def test_long_sums_are_made_block_by_block() -> None:
    a, b = torch.full((9, 200_003), 0.1), torch.full((200_003, 1), 0.1)
    product = op.matmul(a, b)
    assert is_turned(product)
    exact = a.double() @ b.double()
    torch.testing.assert_close(product.torch().double(), exact, rtol=3e-6, atol=0)


def test_nan_and_infinities_come_through() -> None:
    a, b = torch.ones(12, 40), torch.ones(40, 2)
    a[3, 39], a[5, 2], b[7, 1] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(op.matmul(a, b).torch(), a @ b, equal_nan=True)
