"""Products of fp8 and of mixed dtypes: values, dtypes of results, sums, and what fp8 does not meet by itself."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from tessera import dist, op
from tessera.dtypes import bf16, fp8_e4m3, fp8_e5m2, fp32, fp64
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
RELATIVE = {E4M3: 2.0**-4, E5M2: 2.0**-3, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_product(result: Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """One rounding of the exact product, beside the sums' error in fp32."""
    exact = a.double() @ b.double()
    values = result.torch()
    rtol = RELATIVE.get(values.dtype, 0.0)
    torch.testing.assert_close(values.double(), exact, rtol=rtol, atol=1e-5 * max(a.shape[-1], 1), equal_nan=True)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (E4M3, E4M3, E4M3),
        (E5M2, E5M2, E5M2),
        (E4M3, E5M2, torch.float32),
        (E4M3, torch.bfloat16, torch.bfloat16),
        (E5M2, torch.float16, torch.float16),
        (torch.float32, E4M3, torch.float32),
        (torch.float64, E5M2, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 65, 129), (1, 37, 50), (0, 3, 4), (3, 4, 0)], ids=str)
def test_products_are_rounded_once(
    shape: tuple[int, int, int], first: torch.dtype, second: torch.dtype, expected: torch.dtype
) -> None:
    m, n, k = shape
    a, b = drawn(m, k, dtype=first), drawn(k, n, dtype=second)
    product = op.matmul(a, b)
    assert product.torch().dtype is expected
    assert_product(product, a, b)
    stepped = drawn(2 * n, k, dtype=second)[::2]
    assert_product(op.matmul(a, stepped.mT), a, stepped.mT)


def test_batches_broadcast() -> None:
    a, b = drawn(3, 5, 17, dtype=E4M3), drawn(17, 6, dtype=torch.bfloat16)
    assert_product(op.matmul(a, b), a, b)


def test_nan_reaches_its_row_alone_and_infinities_are_e5m2s() -> None:
    a, b = drawn(4, 8, dtype=torch.float32), drawn(8, 5, dtype=E4M3)
    a[1, 2], a[2, 3] = math.nan, math.inf
    result = op.matmul(a.to(E5M2), b, accum_dtype="fp32").torch()
    assert result[1].isnan().all()
    assert not result[2].isfinite().any()
    assert result[[0, 3]].isfinite().all()


def test_what_is_too_large_saturates_in_e4m3_only() -> None:
    a = torch.full((2, 64), 16.0)
    narrow = op.matmul(a.to(E4M3), a.T.contiguous().to(E4M3))
    assert narrow.torch().double().eq(448).all()
    assert op.matmul(a.to(E5M2), (a * 64).T.contiguous().to(E5M2)).torch().double().isposinf().all()
    assert op.matmul(a.to(E4M3), a.T.contiguous().bfloat16()).torch().eq(64 * 256).all()


def test_accum_dtype_leaves_the_results_dtype() -> None:
    a, b = drawn(9, 40, dtype=E4M3), drawn(40, 7, dtype=E4M3)
    assert op.matmul(a, b, accum_dtype="fp32").dtype is fp8_e4m3
    assert op.matmul(a, b.to(torch.bfloat16), accum_dtype="fp32").dtype is bf16
    assert op.matmul(a, b.float().to(E5M2), accum_dtype="fp64").dtype is fp32
    exact = op.matmul(a, b, accum_dtype="fp64")
    assert exact.dtype is fp8_e4m3
    assert exact.torch().double().equal((a.double() @ b.double()).to(E4M3).double())
    with pytest.raises(DTypeError, match="accum_dtype bf16"):
        op.matmul(a, b, accum_dtype="bf16")


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_gemm_meets_all_operands_before_it_rounds(alpha: float) -> None:
    a, b, c = drawn(6, 32, dtype=E4M3), drawn(32, 5, dtype=E4M3), drawn(5, dtype=torch.bfloat16)
    result = op.gemm(a, b, c, alpha=alpha, beta=0.5)
    assert result.dtype is bf16
    exact = alpha * (a.double() @ b.double()) + 0.5 * c.double()
    torch.testing.assert_close(result.torch().double(), exact, rtol=2.0**-6, atol=1e-2)
    narrow = op.gemm(a.bfloat16(), b.bfloat16(), c.to(E4M3), alpha=alpha)
    assert narrow.dtype is bf16
    exact = alpha * (a.double() @ b.double()) + c.to(E4M3).double()
    torch.testing.assert_close(narrow.torch().double(), exact, rtol=2.0**-6, atol=1e-2)


def test_a_product_with_epilogue_is_one_expression_in_fp32() -> None:
    a, b = drawn(13, 24, dtype=E4M3), drawn(24, 11, dtype=torch.bfloat16)
    result = op.gelu(op.matmul(a, b)).to("fp8_e4m3")
    exact = torch.nn.functional.gelu(a.double() @ b.double())
    torch.testing.assert_close(result.torch().double(), exact, rtol=0.07, atol=0.01)


def test_integers_and_fp8_are_refused_where_the_user_wrote_it() -> None:
    a = op.tensor(drawn(3, 4, dtype=E4M3))
    with pytest.raises(DTypeError, match=r"(?s)fp8_e4m3 and int64 .*hint: cast"):
        a @ torch.ones(4, 2, dtype=torch.int64)
    for other in (torch.ones(4, dtype=torch.bfloat16), torch.ones(4, dtype=E5M2), torch.ones(4, dtype=torch.int32)):
        with pytest.raises(DTypeError, match=r"(?s)no common dtype.*hint: cast"):
            a + other
        with pytest.raises(DTypeError, match="no common dtype"):
            op.concat([a, torch.ones(1, 4).to(other.dtype)])


def test_numbers_and_tensors_without_dimensions_adapt_to_fp8() -> None:
    a = op.tensor(torch.tensor([1.0, 2.0, 300.0]).to(E4M3))
    assert (a * 2.5 + 1).dtype is fp8_e4m3
    assert (a * 2.5 + 1).tolist() == [3.5, 6.0, 448.0]
    assert (a + torch.tensor(2.0)).dtype is fp8_e4m3
    assert op.where(a > 1.5, a, 0.0).tolist() == [0.0, 2.0, 288.0]


def test_reductions_sum_in_fp32() -> None:
    a = op.tensor(torch.ones(1000).to(E4M3))
    assert a.to("fp32").sum().item() == 1000
    assert a.mean().item() == 1.0
    assert a.sum().item() == 448.0
    assert op.tensor(torch.ones(1000).to(E5M2)).sum().item() == 1024.0
    x = drawn(5, 33, dtype=E5M2)
    torch.testing.assert_close(op.softmax(x).torch().double(), torch.softmax(x.double(), -1), rtol=0.13, atol=1e-5)


def test_tensors_travel_as_they_are() -> None:
    x = op.tensor((3, 5), dtype="fp8_e5m2")
    assert x.dtype is fp8_e5m2
    assert x.torch().dtype is E5M2
    assert "fp8_e5m2" in repr(x)
    assert "dtype=" not in repr(x)
    for again in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), op.tensor(x.torch())):
        assert again.dtype is fp8_e5m2
        assert again.tolist() == x.tolist()
    assert x.T[1:, ::2].tolist() == x.torch().T[1:, ::2].tolist()
    assert op.tensor([[1.0, 300.0]], dtype="fp8_e4m3").tolist() == [[1.0, 288.0]]


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_numpy_has_no_8_bit_floats(dtype: str) -> None:
    with pytest.raises(DTypeError, match=rf'(?s)numpy has no {dtype}.*hint: \.to\("fp32"\)'):
        op.tensor((3,), dtype=dtype).numpy()


def test_a_tensor_without_a_mesh_is_a_plain_one() -> None:
    x, y = dist.tensor((3, 4), dtype="bf16"), dist.tensor(shape=[3, 4])
    assert (x.shape, x.dtype, y.dtype) == ((3, 4), bf16, fp32)
    assert x.tolist() != y.to("bf16").tolist()
    assert dist.tensor((0, 2), dtype="fp64").dtype is fp64
    for wrong in ("34", 3, (3.0, 4), ((3, 4),), torch.ones(3)):
        with pytest.raises(ArgumentError, match="is no shape"):
            dist.tensor(wrong)  # type: ignore[arg-type]
    with pytest.raises(DTypeError):
        dist.tensor((3, 4), dtype="fp7")
