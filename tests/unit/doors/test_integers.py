"""Arithmetic of narrow integers: wraps around after each operator as torch's does, in one kernel or several; numbers
beside them do too; einsum sums in int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError, DivisionByZeroError, DTypeError

EVERY = torch.arange(-128, 128, dtype=torch.int8)
BYTES = torch.arange(256, dtype=torch.uint8)
SHORTS = torch.arange(-(1 << 15), 1 << 15, 257, dtype=torch.int16)[:256]

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
    "clamped": lambda x, m: m.clamp(x * 2 + 1, 5, 7) * 40,
    "numbers out of range": lambda x, m: (x + 300) * 70_000 - 129,
    "comparison with a number out of range": lambda x, m: m.stack([x > -1, x < 300, x == 65_535, x > 200]),
    "choice of a number out of range": lambda x, m: m.where(x > 3, x, -1),
    "quotients": lambda x, m: x // 7 + x % 300,
    "quotients of floats": lambda x, m: x / 3,
    "quotients by negative numbers": lambda x, m: x / -1 + x / -2,
    "a negative number beside one element": lambda x, m: (x[7] + -1) / -2,
    "powers": lambda x, m: x**2 + x**3,
    "bits": lambda x, m: (~x ^ 5) | (x & 60),
    "shifts": lambda x, m: (x << 3) + (x >> 2) + (x << 9),
    "signs": lambda x, m: m.sign(x - 3),
    "largest elements": lambda x, m: m.topk(x * 5, 3)[0],
    "running sums": lambda x, m: m.cumsum(x, 0),
    "other integers": lambda x, m: x + m.flip(x, (0,)).to(torch.int8) * x.to(torch.uint8),
}


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_each_operator_wraps_around(chain: str) -> None:
    for values in (EVERY, BYTES, SHORTS):
        expected = CHAINS[chain](values, torch)
        result = CHAINS[chain](op.tensor(values), op).torch()
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result, expected, rtol=2e-7, atol=0)


def test_casts_are_torchs_for_numbers_in_range() -> None:
    for source in (torch.linspace(0, 255.9, 777), torch.linspace(0, 255.9, 777).double(), BYTES, EVERY, SHORTS):
        for dtype in (torch.uint8, torch.int16, torch.int8, torch.int32, torch.float32, torch.bfloat16, torch.bool):
            fitting = source / 2 if source.is_floating_point() and dtype == torch.int8 else source
            assert torch.equal((op.tensor(fitting) + 0).to(dtype).torch(), fitting.to(dtype))


def test_one_kernel_takes_numbers_of_any_size() -> None:
    @op.kernel
    def shifted(x: Any, n: int) -> Any:
        return (x + n) > 5

    for n in (3, 300, -1):
        assert torch.equal(shifted(BYTES, n).torch(), (BYTES + n) > 5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_a_product_in_front_of_a_matrix_product_wraps_around(dtype: torch.dtype) -> None:
    a, b = EVERY.reshape(16, 16).to(dtype), EVERY.flip(0).reshape(16, 16).to(dtype)
    result = op.matmul(op.relu(op.tensor(a) * 3), op.tensor(b) + 100).torch()
    assert torch.equal(result, torch.relu(a * 3).int() @ (b + 100).int())


def test_bytes_and_shorts_meet_in_a_product() -> None:
    result = op.matmul(BYTES.reshape(16, 16), SHORTS.reshape(16, 16)).torch()
    assert torch.equal(result, BYTES.reshape(16, 16).int() @ SHORTS.reshape(16, 16).int())


def test_division_by_what_is_0_beside_a_byte_is_refused() -> None:
    with pytest.raises(DivisionByZeroError):
        op.tensor(BYTES) // 256


def test_bounds_that_a_dtype_does_not_have_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no number of uint8"):
        op.clamp(op.tensor(BYTES), -1, 7)


def test_bytes_are_no_index_as_places_and_masks_look_alike() -> None:
    x = op.tensor(EVERY)
    with pytest.raises(DTypeError, match=r"(?s)uint8.*places: .*int64.*mask: .*bool"):
        x[torch.tensor([0, 1], dtype=torch.uint8)]
    assert x[torch.tensor([0, 3], dtype=torch.int16)].tolist() == [-128, -125]
    assert op.take(x, torch.tensor([0, 255], dtype=torch.uint8), 0).tolist() == [-128, 127]


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
