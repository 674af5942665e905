"""Products whose second operand all workers pack together: the same sums, through memory of the plan."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tessera import settings as environment
from tests.property.checking import evaluated
from tests.whole import examples

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8)


@settings(max_examples=examples(8, 16), deadline=None)
@given(
    st.integers(1, 50),
    st.integers(9, 80),
    st.integers(1, 90),
    st.sampled_from(DTYPES),
    st.sampled_from(("[K, N]", "[N, K]", "apart")),
    st.sampled_from(((), (2,), (3, 2))),
    st.sampled_from((1, 2)),
)
def test_products_over_shared_panels(
    m: int, n: int, k: int, dtype: torch.dtype, layout: str, batch: tuple[int, ...], threads: int
) -> None:
    scale = 1 if dtype.is_floating_point else 3
    a = (torch.randn(*batch, m, k) * scale).to(dtype)
    b = (torch.randn(*batch[1:], n, k) * scale).to(dtype).mT
    if layout != "[N, K]":
        b = b.contiguous() if layout == "[K, N]" else b.float().repeat_interleave(2, -1).to(dtype)[..., ::2]
    with environment.override(threads=threads):
        product = op.matmul(a, b).pin(pack_b="shared")
        assert "all workers share panels" in product.inspect("schedule")
        found = evaluated(product).double()
    exact = a.double() @ b.double()
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    least = torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 0.0  # denormals are as far apart as here
    terms = a.double().abs() @ b.double().abs()
    assert bool(((found - exact).abs() <= eps * exact.abs().clamp_min(least) + 2e-6 * terms + 1e-12).all())


def test_what_follows_stays_in_the_kernel_of_the_product() -> None:
    a, b, bias = torch.randn(40, 70), torch.randn(70, 50), torch.randn(50)
    result = op.relu(op.matmul(a, b).pin(pack_b="shared") + bias)
    assert result.inspect("schedule").count("// matmul_add_relu_0") == 2  # and its packing
    torch.testing.assert_close(result.torch(), torch.relu(a @ b + bias), rtol=1e-4, atol=1e-4)


def test_an_operand_that_is_computed_on_the_way_is_packed_by_each_worker() -> None:
    a, b = torch.randn(40, 70), torch.randn(70, 50)
    product = op.matmul(a, op.relu(b))
    assert "all workers share" not in product.inspect("schedule")
    torch.testing.assert_close(product.torch(), a @ b.relu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("k", [63, 64])
def test_bytes_beside_each_other_and_apart(k: int) -> None:
    """Four bytes of K that lie side by side are packed as words, which an odd depth does not permit."""
    a = torch.randint(-128, 128, (20, k), dtype=torch.int8)
    b = torch.randint(-128, 128, (33, k + 1), dtype=torch.int8)[:, 1:].mT
    assert torch.equal(op.matmul(a, b).torch(), a.int() @ b.int())


def test_bytes_in_one_expression_twice() -> None:
    x = torch.randint(-128, 128, (40, 40), dtype=torch.int8)
    both = op.matmul(x, x) + op.matmul(x, op.tensor(x).T)
    assert torch.equal(both.torch(), x.int() @ x.int() + x.int() @ x.int().T)
