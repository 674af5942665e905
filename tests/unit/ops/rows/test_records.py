"""softmax, log_softmax, layer_norm and rms_norm: torch's values, guarded against overflow and cancellation."""

from __future__ import annotations

import math

import pytest
import torch

from tessera import op
from tessera.dtypes import bf16
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.ops import OPERATORS
from tessera.ops.counting import bytes_of, flops_of
from tests.unit.ops.torch_emitter import TorchEmitter, Value

ROWS = torch.tensor(
    [
        [1.0, 2.0, 3.0, 4.0],
        [1e4, 1e4 + 1, -1e4, 0.0],
        [-math.inf, 0.0, 1.0, -math.inf],
        [-math.inf, -math.inf, -math.inf, -math.inf],
        [math.inf, 0.0, 1.0, 2.0],
        [math.nan, 0.0, 1.0, 2.0],
    ]
)


def run_body(name: str, *operands: torch.Tensor, **attributes: object) -> torch.Tensor:
    emitter = TorchEmitter(operands[0].shape[-1])
    result: Value = OPERATORS[name].body(emitter, *(Value(x) for x in operands), **attributes)
    return result.tensor


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_large_infinite_and_missing_values(name: str) -> None:
    expected = getattr(torch, name)(ROWS, -1)
    torch.testing.assert_close(getattr(op, name)(ROWS).torch(), expected, equal_nan=True)
    torch.testing.assert_close(run_body(name, ROWS, axis=1), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_along_any_axis(name: str) -> None:
    x = torch.randn(2, 3, 4)
    for axis in (-3, 0, 1, 2):
        result = getattr(op, name)(x, axis=axis)
        torch.testing.assert_close(result.torch(), getattr(torch, name)(x, axis))
    assert op.softmax(torch.tensor(3.0)).item() == 1.0
    with pytest.raises(ArgumentError):
        op.softmax(x, axis=3)
    with pytest.raises(DTypeError):
        op.softmax(torch.ones(3, dtype=torch.int64))


def test_layer_norm_with_and_without_parameters() -> None:
    x, weight, bias = torch.randn(5, 8), torch.randn(8), torch.randn(8)
    for scale, shift in ((None, None), (weight, None), (None, bias), (weight, bias)):
        expected = torch.nn.functional.layer_norm(x, (8,), scale, shift, 1e-3)
        torch.testing.assert_close(op.layer_norm(x, scale, shift, eps=1e-3).torch(), expected)


def test_layer_norm_of_a_far_mean_keeps_its_digits() -> None:
    x = 4096 + torch.randn(4, 64)
    expected = torch.nn.functional.layer_norm(x.double(), (64,)).float()
    torch.testing.assert_close(run_body("layer_norm", x, eps=1e-5), expected, rtol=1e-3, atol=1e-3)


def test_rms_norm() -> None:
    x, weight = torch.randn(5, 8), torch.randn(8)
    functional = torch.nn.functional
    torch.testing.assert_close(op.rms_norm(x, weight, eps=1e-3).torch(), functional.rms_norm(x, (8,), weight, 1e-3))
    torch.testing.assert_close(op.rms_norm(x, eps=None).torch(), functional.rms_norm(x, (8,)))


def test_parameters_keep_their_dtype_and_the_result_has_the_inputs() -> None:
    x, weight = torch.randn(5, 8).bfloat16(), torch.randn(8)
    result = op.layer_norm(x, weight, weight)
    assert result.dtype is bf16
    assert [operand.dtype.name for operand in result.structure.operands] == ["bf16", "fp32", "fp32"]


def test_parameters_of_another_extent_are_refused() -> None:
    with pytest.raises(ShapeMismatchError, match=r"weight and bias must have shape \(8,\)") as caught:
        op.layer_norm(torch.ones(5, 8), torch.ones(5))
    assert "(5,)" in caught.value.message
    with pytest.raises(ShapeMismatchError):
        op.rms_norm(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("name", "parameters"), [("layer_norm", 0), ("layer_norm", 2), ("rms_norm", 0), ("rms_norm", 1)]
)
def test_bodies_compute_what_references_say(name: str, parameters: int) -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    operands = [x, *(torch.randn(8, dtype=torch.float64) for _ in range(parameters))]
    expected = OPERATORS[name].reference(*operands, eps=1e-5)
    torch.testing.assert_close(run_body(name, *operands, eps=1e-5), expected)


def test_costs() -> None:
    structure = op.softmax(torch.ones(4, 8)).structure
    record = OPERATORS["softmax"]
    # A maximum, a difference, an exponential, a sum and a product for each element, a division for each row.
    assert flops_of(record, structure.operands, structure, structure.named_attributes) == 5 * 32 + 4
    assert bytes_of(record, structure.operands, structure, {}) == 4 * 64
