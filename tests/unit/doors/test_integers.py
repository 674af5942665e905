"""int8 arithmetic: wraps around after each operator as torch's does, in one kernel or several; einsum sums in int32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op

EVERY = torch.arange(-128, 128, dtype=torch.int8)

CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "relu of a product": lambda x, m: m.relu(x * x),
    "largest of a sum": lambda x, m: m.maximum(x + x, x),
    "comparison of a product": lambda x, m: (x * 3) < x,
    "absolute value of a negative": lambda x, m: m.abs(-x - 1),
    "choice by a sum": lambda x, m: m.where(x + 100 > 0, x * x, x - 100),
    "cast of a product": lambda x, m: (x * x).to(torch.float32) * 0.5,
    "logic of a product": lambda x, m: m.logical_and(x * 16, x),
    "sum of products": lambda x, m: (x * x).sum(),
    "largest product": lambda x, m: m.amax(x * x, 0) if m is torch else m.max(x * x, 0),
    "clamped": lambda x, m: m.clamp(x * 2 + 1, -5, 7) * 40,
}


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_each_operator_wraps_around(chain: str) -> None:
    expected = CHAINS[chain](EVERY, torch)
    result = CHAINS[chain](op.tensor(EVERY), op).torch()
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


def test_a_product_in_front_of_a_matrix_product_wraps_around() -> None:
    a, b = EVERY.reshape(16, 16), EVERY.flip(0).reshape(16, 16)
    result = op.matmul(op.relu(op.tensor(a) * 3), op.tensor(b) + 100).torch()
    assert torch.equal(result, torch.relu(a * 3).int() @ (b + 100).int())


@pytest.mark.parametrize(
    "equation", ["ij,kj->ik", "ij,ij->i", "ij,ij->ij", "ij->i", "ii->", "ij,jk,kl->il", "ij,ij,ij->", "ij,kl->ijkl"]
)
def test_einsum_of_int8_is_int32_whatever_the_equation(equation: str) -> None:
    x = torch.tensor([[100, 90], [-128, 77]], dtype=torch.int8)
    operands = [x] * (equation.count(",") + 1)
    result = op.einsum(equation, *operands).torch()
    assert result.dtype == torch.int32
    assert torch.equal(result.long(), torch.einsum(equation, *[operand.long() for operand in operands]))


@pytest.mark.parametrize("equation", ["ij->ji", "ii->i", "ij->ij"])
def test_einsum_that_only_reorders_keeps_int8(equation: str) -> None:
    x = torch.tensor([[100, 90], [-128, 77]], dtype=torch.int8)
    assert torch.equal(op.einsum(equation, x).torch(), torch.einsum(equation, x))
