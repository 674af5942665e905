"""Numbers of elements and random bits: in every layout and kernel, on all oracles; dropout and what it promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import grad, op
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.ops import OPERATORS, oracle
from tessera.ops.algebra import call
from tests.property.checking import evaluated
from tests.property.operands import shapes
from tests.unit.doors.tile_oracle import interpreted
from tests.unit.ops.torch_emitter import TorchEmitter, Value
from tests.whole import examples


def iota(*shape: int) -> Tensor:
    made: Tensor = call("iota", shape=shape)
    return made


# -- numbers of elements ----------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=examples(8, 15))
def test_numbers_meet_operands_of_any_layout(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(min(extent, 33) for extent in data.draw(shapes(rank)))
    order = data.draw(st.permutations(range(rank)))
    stored = tuple(shape[order.index(axis)] for axis in range(rank))
    x = torch.randn(stored, dtype=torch.float64).permute(order)
    assert x.shape == shape
    own = tuple(data.draw(st.sampled_from((extent, extent, 1))) for extent in shape)[data.draw(st.integers(0, 1)) :]
    expected = x * 2 + torch.arange(math.prod(own)).reshape(own)
    tensor = op.tensor(x) * 2 + iota(*own)
    if 0 not in shape:
        torch.testing.assert_close(interpreted(Tensor(tensor.state)), expected)
    torch.testing.assert_close(evaluated(tensor), expected)


@given(data=st.data())
@settings(max_examples=examples(6, 12))
def test_numbers_are_reduced_along_any_axes(data: st.DataObject) -> None:
    shape = tuple(min(extent, 33) for extent in data.draw(shapes(3)))
    first = data.draw(st.integers(0, 2))
    axes = tuple(range(first, data.draw(st.integers(first, 2)) + 1))
    x = torch.randint(-9, 9, shape)
    expected = (x + torch.arange(x.numel()).reshape(shape)).sum(axes)
    tensor = (op.tensor(x) + iota(*shape)).sum(axes)
    assert torch.equal(evaluated(tensor), expected)
    assert torch.equal(iota(*shape).sum(axes).torch(), torch.arange(x.numel()).reshape(shape).sum(axes))


def test_numbers_beside_a_product_and_as_its_operands() -> None:
    a, b = torch.randn(2, 50, 33, dtype=torch.float64), torch.randn(33, 41, dtype=torch.float64)
    numbers = torch.arange(2 * 50 * 41).reshape(2, 50, 41)
    torch.testing.assert_close((op.matmul(a, b) + iota(2, 50, 41)).torch(), a @ b + numbers)
    torch.testing.assert_close((op.matmul(a, b) * iota(50, 1)).torch(), a @ b * torch.arange(50)[:, None])
    assert torch.equal(
        (iota(5, 7) @ iota(7, 3)).torch(), torch.arange(35).reshape(5, 7) @ torch.arange(21).reshape(7, 3)
    )


def test_views_of_numbers_are_copies() -> None:
    numbers = torch.arange(24).reshape(4, 6)
    assert torch.equal(iota(4, 6).T.torch(), numbers.T)
    assert torch.equal((iota(4, 6)[1:, ::2] + 1).torch(), numbers[1:, ::2] + 1)
    assert torch.equal(iota(4, 6).reshape(3, 8).torch(), numbers.reshape(3, 8))


def test_numbers_of_more_than_32_bits() -> None:
    wide = (iota(1, 3) + (1 << 33)).torch()
    assert wide.tolist() == [[(1 << 33), (1 << 33) + 1, (1 << 33) + 2]]


# -- random bits ------------------------------------------------------------------------------------------------------


def test_bits_are_philoxs() -> None:
    """The first bits are Random123's known answer for philox4x32 with 10 rounds, counter 0 and key 0."""
    bits = call("philox", iota(4), 0)
    assert bits.tolist()[0] == 0x6627E8D5
    assert torch.equal(interpreted(call("philox", iota(4), 0)), bits.torch())
    value = [Value(torch.tensor([5, 1 << 40])), Value(torch.tensor(77 << 33))]
    assert torch.equal(
        OPERATORS["philox"].body(TorchEmitter(), *value).tensor,
        OPERATORS["philox"].reference(*[each.tensor for each in value]),
    )


def test_counters_and_seeds_of_64_bits_count() -> None:
    counters = torch.tensor([1, 1 + (1 << 32), 1 + (1 << 62)])
    seeds = (3, 3 + (1 << 32), 3 + (1 << 62))
    bits = {tuple(call("philox", counters, seed).tolist()) for seed in seeds}
    assert len({word for words in bits for word in words}) == 9


# -- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_so_many_are_kept(p: float) -> None:
    """A chi-squared test over 64 runs of elements, at 1 in 10^6 (63 degrees of freedom: 136)."""
    count = 1 << 14
    kept = (op.dropout(torch.ones(64, count), p, seed=2026).torch() != 0).double().sum(1)
    deviations = (kept - count * (1 - p)) ** 2 / (count * p * (1 - p))
    assert float(deviations.sum()) < 136.0
    assert float((kept.sum() - 64 * count * (1 - p)).abs()) < 5 * math.sqrt(64 * count * p * (1 - p))


def test_neighbours_and_seeds_are_independent() -> None:
    first, second = ((op.dropout(torch.ones(1 << 16), 0.5, seed).torch() != 0).double() - 0.5 for seed in (1, 2))
    bound = 5 * 0.25 / math.sqrt(1 << 16)
    assert abs(float((first * second).mean())) < bound
    assert abs(float((first[1:] * first[:-1]).mean())) < bound


def test_the_choice_depends_on_seed_and_number_alone() -> None:
    x = torch.randn(37, 53)
    expected = op.dropout(x, 0.3, 5).torch()
    assert torch.equal(op.dropout(x.T.contiguous().T, 0.3, 5).torch(), expected)
    assert torch.equal(op.dropout(x, 0.3, torch.tensor(5)).torch(), expected)
    assert torch.equal((op.dropout(op.tensor(x) * 1, 0.3, 5) * 2).torch(), expected * 2)
    assert torch.equal(op.dropout(x, 0.3, 5).pin(tile=(1, 16)).torch(), expected)
    assert torch.equal(op.dropout(x, 0.3, 5).pin(fusion=False).torch(), expected)
    assert torch.equal(op.dropout(x[None].expand(2, 37, 53), 0.3, 5).torch()[0], expected)
    assert not torch.equal(op.dropout(x, 0.3, 6).torch(), expected)
    with torch.inference_mode():
        assert torch.equal(op.dropout(op.tensor(x, device="interpreter"), 0.3, 5).torch(), expected)


def test_the_gradient_makes_the_same_choice() -> None:
    x = torch.randn(11, 13)
    kept = op.dropout(torch.ones(11, 13), 0.4, 9).torch()
    torch.testing.assert_close(grad.grad(lambda a: (op.dropout(a, 0.4, 9) * 3).sum())(x).torch(), kept * 3)


def test_dropout_is_part_of_its_neighbours_kernel() -> None:
    launches = launches_of_operator(lambda a: op.dropout(op.gelu(a), 0.1, 3) + a, [(30, 40)], "fp32")
    assert len(launches) == 1
    program_for_other_seed = launches_of_operator(lambda a: op.dropout(op.gelu(a), 0.2, 4) + a, [(30, 40)], "fp32")
    assert program_for_other_seed[0].call.item is launches[0].call.item


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_corners(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -1.0, 2.0]).to(dtype)
    assert torch.equal(op.dropout(x, 1.0, 0).torch(), torch.zeros(4, dtype=dtype))
    torch.testing.assert_close(op.dropout(x, 0, 0).torch(), x, equal_nan=True)
    torch.testing.assert_close(op.dropout(x, 0.5, 0, training=False).torch(), x, equal_nan=True)
    assert op.dropout(torch.zeros(0, 3, dtype=dtype), 0.5, 1).torch().shape == (0, 3)
    made = op.dropout(torch.ones(64, dtype=dtype), 0.75, 1)
    assert made.dtype.torch == dtype
    assert set(made.torch().double().tolist()) == {0.0, 4.0}
    torch.testing.assert_close(
        oracle.reference(op.dropout(x, 0.5, 3)).to(dtype), op.dropout(x, 0.5, 3).torch(), equal_nan=True
    )


def test_what_is_refused() -> None:
    x = torch.ones(3)
    for p in (-0.1, 1.1, math.nan, True, "0.5"):
        with pytest.raises(ArgumentError, match="p="):
            op.dropout(x, p, 0)  # type: ignore[arg-type]
    for seed in (-1, 1 << 63):
        with pytest.raises(ArgumentError, match="seed="):
            op.dropout(x, 0.5, seed)
    with pytest.raises(ArgumentError, match="a seed of shape"):
        op.dropout(x, 0.5, torch.ones(2, dtype=torch.int64))
    with pytest.raises(DTypeError, match="dropout of int64"):
        op.dropout(torch.arange(3), 0.5, 0)
