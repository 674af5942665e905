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
    torch.testing.assert_close(scaled.torch().double(), torch.tanh(product) * a.double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(plain.torch().double(), product, rtol=1e-5, atol=1e-6)
