"""Reductions over any axes, against torch."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import op
from tessera.errors import ArgumentError, DTypeError
from tessera.ops import OPERATORS
from tessera.ops.counting import bytes_of, flops_of
from tests.unit.ops.torch_emitter import TorchEmitter, Value

NAMES = ["sum", "mean", "max", "min", "prod", "argmax"]


def torch_reduction(name: str, x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    if name == "prod":
        for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
            x = x.prod(axis, keepdim=keepdims)
        return x
    function = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[name]
    return function(x, axes, keepdim=keepdims)  # type: ignore[no-any-return, operator]


@given(
    st.sampled_from(NAMES[:-1]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.booleans(),
    st.data(),
)
def test_any_axes(name: str, shape: list[int], keepdims: bool, data: st.DataObject) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    axes = [axis - len(shape) if data.draw(st.booleans()) else axis for axis in axes]
    result = getattr(op, name)(x, axis=axes, keepdims=keepdims)
    expected = torch_reduction(name, x, tuple(axes), keepdims)
    assert result.shape == tuple(expected.shape)
    torch.testing.assert_close(result.torch(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_all_axes_by_default_and_no_axes_of_a_number(name: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    assert getattr(op, name)(x).shape == ()
    assert getattr(op, name)(x, keepdims=True).shape == (1, 1)
    single = torch.tensor(2.5)
    assert getattr(op.tensor(single), name)(axis=-1).item() == (0 if name == "argmax" else 2.5)


def test_integers_and_bools_add_up_in_int64() -> None:
    for dtype in (torch.bool, torch.int32, torch.int64):
        x = torch.ones(3, 2, dtype=dtype)
        for name in ("sum", "prod"):
            result = getattr(op, name)(x, 0)
            assert result.dtype.torch == torch.int64
            assert result.tolist() == getattr(torch, name)(x, 0).tolist()
    with pytest.raises(DTypeError, match="mean"):
        op.mean(torch.ones(3, dtype=torch.int32))
    with pytest.raises(DTypeError, match="argmax"):
        op.argmax(torch.ones(3, dtype=torch.bool))


def test_nan_is_the_extreme() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0, math.nan], [1.0, 7.0, 7.0, -math.inf]])
    assert math.isnan(op.max(x).item())
    assert op.argmax(x, 1).tolist() == torch.argmax(x, 1).tolist() == [1, 1]
    assert op.argmax(x).item() == 1
    torch.testing.assert_close(op.min(x, 1).torch(), torch.amin(x, 1), equal_nan=True)


def test_nothing_has_a_sum_and_no_maximum() -> None:
    x = torch.empty(0, 3)
    assert op.sum(x, 0).tolist() == [0.0, 0.0, 0.0]
    assert op.prod(x, 0).tolist() == [1.0, 1.0, 1.0]
    assert op.mean(x, 0).torch().isnan().all()
    assert op.max(x, 1).shape == (0,)
    for name in ("max", "min", "argmax"):
        with pytest.raises(ArgumentError, match="no elements"):
            getattr(op, name)(x, 0)


def test_axes_out_of_range_or_repeated_are_refused() -> None:
    x = torch.ones(2, 3)
    for axes in (2, -3, (0, 0), (0, -2)):
        with pytest.raises(ArgumentError):
            op.sum(x, axes)
    with pytest.raises(ArgumentError, match="one axis, or all"):
        op.argmax(torch.ones(2, 3, 4), axis=(0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_bodies_reduce_the_last_axis(name: str) -> None:
    x = torch.tensor([[3.0, -1.0, 3.0, 0.5], [2.0, math.nan, 1.0, math.nan]], dtype=torch.float64)
    record = OPERATORS[name]
    result = record.body(TorchEmitter(4), Value(x), axes=(1,), keepdims=True).tensor
    torch.testing.assert_close(result, record.reference(x, axes=(1,), keepdims=True), equal_nan=True)


@pytest.mark.parametrize("name", ["max", "min"])
def test_bodies_of_bools(name: str) -> None:
    x = torch.tensor(list(itertools.product([True, False], repeat=3)))
    record = OPERATORS[name]
    result = record.body(TorchEmitter(3), Value(x), axes=(1,), keepdims=True).tensor
    assert torch.equal(result, record.reference(x, axes=(1,), keepdims=True))


def test_costs_count_what_is_read() -> None:
    structure = op.mean(torch.ones(8, 16), 1).structure
    record = OPERATORS["mean"]
    assert flops_of(record, structure.operands, structure, structure.named_attributes) == 8 * 16 + 8
    assert bytes_of(record, structure.operands, structure, {}) == 4 * (8 * 16 + 8)


def test_an_axis_is_an_integer_of_any_library() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(op.sum(x, numpy.int64(1)).torch(), x.sum(1))  # type: ignore[arg-type]
    for axis in (1.0, "1", (0, None)):
        with pytest.raises(ArgumentError, match="is an integer"):
            op.sum(x, axis)  # type: ignore[arg-type]
