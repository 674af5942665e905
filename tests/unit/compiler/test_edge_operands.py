"""Operands at the edges of what kernels are generated for: repeated, empty, without memory, of integers."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.ops.algebra import call


@pytest.mark.parametrize(("shape", "axes"), [((4, 1), (0,)), ((4, 1), (0, 1)), ((4, 3), (0,)), ((4,), (0,))])
def test_reductions_read_an_operand_that_repeats_along_them(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    row = torch.randn((1, *shape[1:])).expand(shape)
    torch.testing.assert_close(op.sum(row, axes).torch(), row.sum(axes))
    torch.testing.assert_close(op.max(row, axes).torch(), row.amax(axes))


@pytest.mark.parametrize("length", [2, 16, 33])
def test_rows_of_one_repeated_element_are_written_in_full(length: int) -> None:
    row = torch.randn(1).expand(length)
    torch.testing.assert_close(op.softmax(row).torch(), torch.softmax(row, 0))
    torch.testing.assert_close(op.rms_norm(row).torch(), torch.nn.functional.rms_norm(row, (length,), eps=1e-6))


def test_products_read_operands_that_repeat_along_the_sum() -> None:
    a, b = torch.randn(5, 1).expand(5, 9), torch.randn(1, 7).expand(9, 7)
    torch.testing.assert_close(op.matmul(a, b).torch(), a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [(0, 1), (1,)])
def test_empty_reductions_give_the_neutral_element(axes: tuple[int, ...]) -> None:
    x = torch.ones(2, 0)
    torch.testing.assert_close(op.sum(x, axes).torch(), x.sum(axes))
    torch.testing.assert_close(op.prod(x, axes).torch(), torch.ones_like(x.sum(axes)))


def test_layout_operators_on_a_number_read_its_value() -> None:
    number: Tensor = op.kernel(lambda x, s: (op.reshape(s * 1.0, (1, 1)) + x * 0.0, s))(torch.ones(2, 3), 2.5)[0]
    assert number.tolist() == [[2.5] * 3] * 2
    shifted = op.kernel(lambda s: op.broadcast_to(op.reshape(s, (1,)), (4,)))
    for value in (0.75, -3.5):
        assert shifted(value).tolist() == [value] * 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_powers_wrap_around_and_negative_ones_vanish(dtype: torch.dtype) -> None:
    base = torch.tensor([0, 1, -1, 2, 3, -3, 7, 10, -1], dtype=dtype)
    exponents = torch.tensor([0, 5, 5, 40, 50, 41, 100, 9, -3], dtype=dtype)
    assert call("pow", as_node(base), as_node(exponents)).tolist() == torch.pow(base, exponents).tolist()
    negative = torch.full_like(base, -2)
    assert call("pow", as_node(base), as_node(negative)).tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 1]


def test_a_chain_of_many_operators_is_one_kernel() -> None:
    x = torch.rand(40)
    chain = op.tensor(x)
    for _ in range(700):  # deeper than Python may recurse
        chain = chain * 1.001 + x
    exact = x.double()
    for _ in range(700):
        exact = exact * 1.001 + x.double()
    torch.testing.assert_close(chain.torch().double(), exact, rtol=1e-4, atol=0)
