"""Elementwise operators against torch, special values included; bodies against references; costs."""

from __future__ import annotations

import math

import pytest
import torch

from tessera import op
from tessera.dtypes import bool_, fp32, int32, int64
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.ops import OPERATORS
from tessera.ops.counting import bytes_of, flops_of
from tests.unit.ops.torch_emitter import TorchEmitter, Value

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -0.5, 3.7, -80.0, 80.0, 1e-30, math.inf, -math.inf, math.nan])
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL).T.double()

UNARY = ["neg", "abs", "relu", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "silu", "gelu"]
UNARY += ["expm1", "log1p", "sin", "cos", "floor", "ceil", "round"]
BINARY = ["add", "sub", "mul", "div", "pow", "maximum", "minimum"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def same(actual: Tensor | torch.Tensor, expected: torch.Tensor) -> None:
    values = actual.torch() if isinstance(actual, Tensor) else actual
    torch.testing.assert_close(values, expected, equal_nan=True, rtol=1e-12, atol=1e-12)


def run_body(name: str, *operands: torch.Tensor, **attributes: object) -> torch.Tensor:
    result: Value = OPERATORS[name].body(TorchEmitter(), *(Value(x) for x in operands), **attributes)
    return result.tensor


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_variable(name: str) -> None:
    x = SPECIAL.double()
    function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    same(getattr(op, name)(x), function(x))
    attributes = {"approximate": "none"} if name == "gelu" else {}
    same(run_body(name, x, **attributes), function(x))


@pytest.mark.parametrize("name", BINARY + COMPARISONS)
def test_functions_of_two_variables(name: str) -> None:
    a, b = PAIRS
    expected = getattr(torch, name)(a, b)
    same(getattr(op, name)(a, b), expected)
    same(run_body(name, a, b), expected)


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "minimum", *COMPARISONS, "logical_and", "logical_or"])
def test_bools(name: str) -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    expected = getattr(torch, name)(a, b)
    assert torch.equal(getattr(op, name)(a, b).torch(), expected)
    assert torch.equal(run_body(name, a, b), expected)


def test_integers_divide_to_floats_and_wrap_around() -> None:
    a, b = torch.tensor([7, -7, 1]), torch.tensor([2, 2, 0])
    same(op.div(a, b), (a / b))
    small = torch.tensor([2**31 - 1], dtype=torch.int32)
    assert op.add(small, 1).torch().item() == -(2**31)
    assert op.pow(torch.tensor([3, -2]), 3).tolist() == [27, -8]


def test_gelu_by_tanh() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    same(op.gelu(x, approximate="tanh"), expected)
    same(run_body("gelu", x, approximate="tanh"), expected)
    with pytest.raises(ArgumentError, match="approximate"):
        op.gelu(x, approximate="sigmoid")


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (None, 0.5), (2, None), (1.0, -1.0), (-0.0, None)])
def test_clamp_by_numbers(low: float | None, high: float | None) -> None:
    x = SPECIAL.double()
    same(op.clamp(x, low, high), torch.clamp(x, low, high))


def test_clamp_of_integers_and_by_tensors() -> None:
    x = torch.arange(-3, 4)
    assert op.clamp(x, -1, 2).tolist() == torch.clamp(x, -1, 2).tolist()
    fractional = op.clamp(x, -1.5, 2)
    assert fractional.dtype is fp32
    assert fractional.tolist() == torch.clamp(x, -1.5, 2).tolist()
    low = torch.full((7,), -2)
    assert op.clamp(x, low, 1).tolist() == torch.clamp(x, low, torch.tensor(1)).tolist()
    with pytest.raises(ArgumentError, match="bound"):
        op.clamp(x)


def test_where_takes_the_branch_and_nothing_of_the_other() -> None:
    x = torch.tensor([1.0, math.nan, -2.0])
    result = op.where(op.tensor(x) > 0, x, 7)
    assert result.tolist() == [1.0, 7.0, 7.0]
    assert op.where(torch.tensor([True, False]), 1.5, 2.5).tolist() == [1.5, 2.5]


def test_casts() -> None:
    x = torch.tensor([1.9, -1.9, 0.0])
    assert op.cast(x, int32).tolist() == [1, -1, 0]
    assert op.cast(x, "bool").tolist() == [True, True, False]
    tensor = op.tensor(x)
    assert tensor.to(fp32) is tensor
    assert op.cast(op.cast(torch.tensor([0.1]), "bf16"), "fp32").item() == torch.tensor(0.1).bfloat16().float().item()
    assert run_body("cast", x, dtype=int64).tolist() == [1, -1, 0]


def test_logic_counts_numbers_as_true_where_they_are_not_zero() -> None:
    a = torch.tensor([0, 2, 3])
    assert op.logical_not(a).tolist() == [True, False, False]
    assert op.logical_and(a, torch.tensor([1.0, 0.0, 2.0])).tolist() == [False, False, True]
    assert op.logical_or(a, a).dtype is bool_


def test_costs_count_the_results_elements() -> None:
    y = op.gelu(op.add(torch.ones(3, 4), torch.ones(4)))
    structure = y.structure
    assert structure.operator is not None
    record = OPERATORS[structure.operator.name]
    assert flops_of(record, structure.operands, structure, structure.named_attributes) == 5 * 12
    total = structure.operands[0]
    assert flops_of(OPERATORS["add"], total.operands, total, {}) == 12
    assert bytes_of(OPERATORS["add"], total.operands, total, {}) == 4 * (12 + 4 + 12)


@pytest.mark.parametrize("dtype", ["tf32"])
def test_casts_to_dtypes_without_kernels_are_refused_at_the_call(dtype: str) -> None:
    with pytest.raises(DTypeError, match=rf"\(3,\) fp32: tensors of {dtype} are not computed with"):
        op.cast(torch.ones(3), dtype)
    with pytest.raises(DTypeError, match=dtype):
        op.tensor(torch.ones(3)).to(dtype)


def test_powers_of_a_half_are_square_roots() -> None:
    x = torch.tensor([-math.inf, -1.0, -0.0, 0.0, 2.25, math.inf, math.nan])
    for exponent in (0.5, -0.5):
        torch.testing.assert_close(op.pow(x, exponent).torch(), x**exponent, equal_nan=True, rtol=1e-6, atol=0)
        assert torch.equal(1 / (op.tensor(x) ** exponent).torch() < 0, 1 / x**exponent < 0)  # the sign of zero
    assert (op.tensor([4, 9]) ** 0.5).tolist() == [2.0, 3.0]
