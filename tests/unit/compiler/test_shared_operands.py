"""Products whose first operand is read by their epilogue, too."""

from __future__ import annotations

import pytest
import torch

from tessera import op


@op.kernel
def both(a: torch.Tensor, b: torch.Tensor) -> tuple[object, object]:
    """A product times its own first operand, and the product."""
    return op.tanh(op.matmul(a, b) * 0.125) * a, op.matmul(a, b) * 0.125


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (1, 5), (5, 1), (17, 33)])
def test_a_column_is_multiplied_and_scales_what_comes_of_it(rows: int, columns: int) -> None:
    a, b = torch.randn(rows, 1), torch.randn(1, columns)
    scaled, plain = both(a, b)
    product = a.double() @ b.double() * 0.125
    torch.testing.assert_close(scaled.torch().double(), torch.tanh(product) * a.double(), rtol=1e-5, atol=1e-6)  # type: ignore[attr-defined]
    torch.testing.assert_close(plain.torch().double(), product, rtol=1e-5, atol=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_operands_that_repeat_one_element_along_the_reduced_axis(dtype: torch.dtype) -> None:
    a = torch.arange(7).sub(3).to(dtype).reshape(7, 1).expand(7, 19)
    b = torch.arange(5).sub(2).to(dtype).reshape(1, 5).expand(19, 5)
    expected = a.double() @ b.double()
    assert torch.equal(op.matmul(a, b).torch().double(), expected)
    scaled = op.matmul(a, b) * op.sum(a, -1, True)  # the operand is read by the epilogue, too
    wanted = expected * a.double().sum(-1, keepdim=True)
    if dtype is torch.int8:
        wanted = (wanted.to(torch.int64).to(scaled.torch().dtype)).double()
    torch.testing.assert_close(scaled.torch().double(), wanted, rtol=1e-2 if dtype is torch.bfloat16 else 0, atol=0)
