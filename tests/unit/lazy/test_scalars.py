"""Python numbers beside tensors: literals, arguments, and torch's weak promotion."""

from __future__ import annotations

import struct

import pytest
import torch

from tessera import op
from tessera.dtypes import bf16, bool_, fp32, fp64, int32, int64
from tessera.errors import ArgumentError
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.lazy.leaves.scalars import LITERALS, scalar_node


def test_literals_are_part_of_the_structure_and_other_numbers_are_arguments() -> None:
    x = op.tensor(torch.ones(3))
    for number in LITERALS:
        assert (x * number).leaves == x.leaves
    for number in (3, 0.1, -7.5, float("nan"), float("inf"), -0.0):
        assert len((x * number).leaves) == 2
    assert (x * 3.5).structure is (x * 4.5).structure


def test_negative_zero_is_not_the_literal_zero() -> None:
    x = op.tensor(torch.zeros(1))
    assert str((x * -1 + -0.0).item()) == "-0.0"
    assert str((x * -1 + 0.0).item()) == "0.0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("number", [True, 3, 2, 0.5, 3.7])
def test_results_have_torchs_dtype(dtype: torch.dtype, number: float) -> None:
    for shape in ((2,), ()):
        x = torch.ones(shape, dtype=dtype)
        assert (op.tensor(x) * number).dtype.torch == (x * number).dtype
        assert (number / op.tensor(x)).dtype.torch == (number / x).dtype
        assert (op.tensor(x) > number).dtype is bool_


def test_arguments_are_held_in_the_accumulators_dtype() -> None:
    assert scalar_node(3.7, bf16).dtype is fp32
    assert scalar_node(3.7, int32).dtype is fp32
    assert scalar_node(3.7, fp64).dtype is fp64
    assert scalar_node(3, int32).dtype is int32
    assert scalar_node(3, bool_).dtype is int64
    assert scalar_node(0.5, bf16).dtype is bf16  # a literal, exact


def test_the_word_of_a_scalar_is_its_bits() -> None:
    assert scalar_leaf(3.5, fp32).address == struct.unpack("<I", struct.pack("<f", 3.5))[0]
    assert scalar_leaf(3.5, fp64).address == struct.unpack("<Q", struct.pack("<d", 3.5))[0]
    assert scalar_leaf(-1, int64).address == 2**64 - 1
    assert scalar_leaf(-1, int32).address & 0xFFFFFFFF == 2**32 - 1
    assert scalar_leaf(True, bool_).address == 1
    assert scalar_leaf(1e300, fp32).address == 0x7F800000
    assert scalar_leaf(-1e300, fp32).address == 0xFF800000


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
@pytest.mark.parametrize("number", [300, 2**31 + 5, -(2**31) - 1, 2**40 + 7, -(2**63)])
def test_integers_beyond_the_dtype_wrap_as_in_torch(dtype: torch.dtype, number: int) -> None:
    x = torch.tensor([0, 1, 7, 100], dtype=dtype)
    y = op.tensor(x)
    found = [y + number, number - y, y * number, y & number, y < number, y == number, y / number, op.maximum(y, number)]
    beside = x.new_tensor(number & 0xFF) if dtype is torch.uint8 else x.new_tensor((number + 2**31) % 2**32 - 2**31)
    wanted = [x + number, number - x, x * number, x & number, x < number, x == number, x / number, x.maximum(beside)]
    for mine, torchs in zip(found, wanted, strict=True):
        assert torch.equal(mine.torch(), torchs)


def test_integers_beyond_the_dtype_wrap_in_kernels_too() -> None:
    add = op.kernel(lambda x, n: x + n)
    share = op.kernel(lambda x, n: x / n)
    for dtype in (torch.uint8, torch.int32):
        x = torch.tensor([0, 1, 7, 100], dtype=dtype)
        assert torch.equal(add(x, 2**31 + 5).torch(), x + (2**31 + 5))
        assert torch.equal(share(x, 2**40).torch(), x / 2**40)
        assert torch.equal(add(x, 3).torch(), x + 3)


def test_integers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="does not fit into int64") as caught:
        op.tensor(torch.ones(2, dtype=torch.int32)) + 2**63
    assert str(-(2**63)) in str(caught.value)
    with pytest.raises(ArgumentError, match="does not fit into int64"):
        op.tensor([1, 2]) + (-(2**63) - 1)
    with pytest.raises(ArgumentError, match="negative power"):
        op.tensor([1, 2]) ** -3


def test_numpy_scalars_are_numbers() -> None:
    import numpy

    x = op.tensor(torch.ones(2))
    assert (x * numpy.float64(3.5)).dtype is fp32
    assert (numpy.float64(3.5) * x).tolist() == [3.5, 3.5]
