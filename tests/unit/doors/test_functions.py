"""Functions and reductions that are made of others: against torch, over drawn shapes, corners included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tests.property.checking import evaluated
from tests.property.operands import shapes

functional = torch.nn.functional
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -0.5, 3.5, -80.0, 80.0, 1e-30, math.inf, -math.inf, math.nan])

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "leaky_relu": (lambda x: op.leaky_relu(x, 0.2), lambda x: functional.leaky_relu(x, 0.2)),
    "elu": (lambda x: op.elu(x, 1.5), lambda x: functional.elu(x, 1.5)),
    "softplus": (op.softplus, lambda x: functional.softplus(x, threshold=1e9)),
    "hardswish": (op.hardswish, functional.hardswish),
    "isnan": (op.isnan, torch.isnan),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_are_torchs(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    finite = SPECIAL[~torch.isinf(SPECIAL)] if name == "softplus" else SPECIAL  # torch's overflows there
    for x in (finite, finite.double(), finite.repeat(3, 7)[:, ::2]):
        torch.testing.assert_close(evaluated(ours(x)), theirs(x), equal_nan=True, rtol=2e-6, atol=1e-30)


def test_softplus_of_what_is_large() -> None:
    x = torch.tensor([-math.inf, -200.0, 1000.0, math.inf])
    assert torch.equal(op.softplus(x).torch(), torch.tensor([0.0, 0.0, 1000.0, math.inf]))


@settings(max_examples=25)
@given(data=st.data())
def test_variances_over_drawn_shapes(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = tuple(max(extent, 2) for extent in data.draw(shapes(rank, long=True)))
    axis = data.draw(st.sampled_from([None, *range(rank)]))
    correction = data.draw(st.sampled_from((0, 1, 0.5)))
    keepdims = data.draw(st.booleans())
    x = torch.randn(shape, dtype=torch.float64) * 3 + 5
    expected = torch.var(x, dim=axis, correction=correction, keepdim=keepdims)
    torch.testing.assert_close(evaluated(op.var(x, axis, correction, keepdims)), expected, equal_nan=True)
    expected = torch.std(x, dim=axis, correction=correction, keepdim=keepdims)
    torch.testing.assert_close(evaluated(op.std(x, axis, correction, keepdims)), expected, equal_nan=True)


@settings(max_examples=25)
@given(data=st.data())
def test_quantifiers_over_drawn_shapes(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = data.draw(shapes(rank))
    axis = data.draw(st.integers(-rank, rank - 1))
    dtype = data.draw(st.sampled_from((torch.bool, torch.int32, torch.float32)))
    x = (torch.rand(shape) > data.draw(st.sampled_from((0.05, 0.5, 0.95)))).to(dtype)
    assert torch.equal(evaluated(op.all(x, axis)), torch.all(x != 0, axis))
    assert torch.equal(evaluated(op.any(x, axis, True)), torch.any(x != 0, axis, True))


def test_a_variance_is_one_kernel_and_does_not_cancel() -> None:
    x = torch.randn(64, 300) + 1e4
    torch.testing.assert_close(op.var(x, -1).torch().double(), x.double().var(-1), rtol=1e-4, atol=0)
    assert len(launches_of_operator(lambda t: op.var(t, -1), [(64, 300)], "fp32")) == 1


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variances_of_too_few_elements_are_torchs() -> None:
    for shape in ((3, 1), (3, 0)):
        x = torch.ones(shape)
        torch.testing.assert_close(op.var(x, 1).torch(), x.var(1), equal_nan=True)


def test_logsumexp_of_infinities_and_of_nothing() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[-inf, -inf, -inf], [1.0, inf, -inf], [inf, inf, 0.0], [nan, 1.0, 2.0], [1e4, 1e4, -inf]])
    torch.testing.assert_close(op.logsumexp(x, -1).torch(), torch.logsumexp(x, -1), equal_nan=True)
    assert torch.equal(op.logsumexp(torch.zeros(3, 0), 1).torch(), torch.full((3,), -inf))


def test_what_is_refused() -> None:
    with pytest.raises(DTypeError, match="var of int64"):
        op.var(torch.arange(3))
    with pytest.raises(ArgumentError, match="correction='a'"):
        op.std(torch.ones(3), correction="a")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="elu of int64"):
        op.elu(torch.arange(3))
    with pytest.raises(ArgumentError, match="negative_slope=True"):
        op.leaky_relu(torch.ones(3), True)


@pytest.mark.parametrize("name", ["sin", "cos", "expm1", "log1p", "floor", "ceil", "round", "softplus", "elu"])
def test_on_the_interpreter(name: str) -> None:
    x = torch.linspace(-0.9, 3.1, 37)
    expected = getattr(op, name)(x).torch()
    torch.testing.assert_close(getattr(op, name)(op.tensor(x, device="interpreter")).torch(), expected)


def test_reductions_on_the_interpreter() -> None:
    x = torch.randn(5, 33)
    there = op.tensor(x, device="interpreter")
    torch.testing.assert_close(op.var(there, 1).torch(), x.var(1))
    torch.testing.assert_close(op.logsumexp(there, 1).torch(), x.logsumexp(1))
    assert torch.equal(op.any(there > 2, 1).torch(), (x > 2).any(1))


def test_powers_of_two_reach_the_ends_of_doubles() -> None:
    x = torch.tensor([1023.7, 1023.99, 1024.0, -1074.4, -1074.6, -1075.5, 1e300, -1e300], dtype=torch.float64)
    torch.testing.assert_close(op.exp2(x).torch(), torch.exp2(x), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_the_least_integer_has_a_size(dtype: torch.dtype) -> None:
    x = torch.tensor([torch.iinfo(dtype).min, 7, -3], dtype=dtype)
    for sign in (1, -1):
        assert torch.equal(op.copysign(x, sign).torch(), torch.copysign(x, torch.tensor(sign)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [-1e9, -math.inf, 0.3])
def test_numbers_do_not_widen_narrow_floats(dtype: torch.dtype, number: float) -> None:
    for x in (torch.tensor(1.5, dtype=dtype), torch.tensor([1.5, -2.0], dtype=dtype)):
        for made in (op.tensor(x) + number, op.fmod(number, x), op.copysign(number, x), op.where(x > 0, x, number)):
            assert made.dtype == dtype
        assert torch.equal((op.tensor(x) + number).torch(), x + number)


def test_neighbours_of_numbers_are_those_of_the_tensors_dtype() -> None:
    one = torch.tensor(1.0, dtype=torch.bfloat16)
    for x in (one, one.reshape(1)):
        like = torch.full_like(x, 2.3)
        assert torch.equal(op.nextafter(x, 2.3).torch(), torch.nextafter(x, like))
        assert torch.equal(op.nextafter(2.3, x).torch(), torch.nextafter(like, x))


def test_limits_of_a_wider_dtype_are_infinite() -> None:
    x = op.tensor(torch.tensor([1.0, -2.0]))
    least = torch.finfo(torch.float64).min
    assert (x + least).tolist() == [-math.inf, -math.inf]
    assert op.where(x > 0, x, least).tolist() == [1.0, -math.inf]
    assert op.clamp(x, min=-1e300).tolist() == [1.0, -2.0]
