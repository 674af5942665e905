"""References and tolerances: a right result passes, a result wrong anywhere in a tile does not."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from bench.cases import TOLERANCE, Case, DtypeName, Operation, error, make_inputs
from bench.environments import NotMeasuredError
from bench.peers import BUILDERS, torch_fresh, torch_out


def case(operation: Operation, dtype: DtypeName = "fp32") -> Case:
    return Case(operation, (96, 80, 64) if operation in ("matmul", "linear_gelu") else (96, 80), dtype)


@pytest.mark.parametrize("dtype", get_args(DtypeName))
@pytest.mark.parametrize("operation", get_args(Operation))
def test_torch_passes_its_own_reference(operation: Operation, dtype: DtypeName) -> None:
    problem = case(operation, dtype)
    inputs = make_inputs(problem)
    result = torch_fresh(problem, inputs)()
    assert isinstance(result, torch.Tensor)
    assert result.dtype == inputs.x.dtype
    assert error(problem, inputs, result) < TOLERANCE[dtype]


@pytest.mark.parametrize("operation", [name for name in get_args(Operation) if name != "rms_norm"])
def test_preallocated_results_equal_fresh_ones(operation: Operation) -> None:
    problem = case(operation)
    inputs = make_inputs(problem)
    fresh, out = torch_fresh(problem, inputs)(), torch_out(problem, inputs)()
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, fresh)


@pytest.mark.parametrize("builder", ["onednn_linear", "mkl_packed", "mkl_out", "openblas"])
def test_library_paths_compute_the_product(builder: str) -> None:
    problem = case("matmul")
    inputs = make_inputs(problem)
    try:
        result = BUILDERS[builder](problem, inputs)()
    except NotMeasuredError as missing:
        pytest.skip(f"not on this machine: {missing}")
    assert error(problem, inputs, torch.as_tensor(result)) < TOLERANCE["fp32"]


def test_inputs_are_the_same_in_every_call() -> None:
    first, second = make_inputs(case("matmul")), make_inputs(case("matmul"))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.weight, second.weight)


def test_a_wrong_element_in_the_last_tile_is_found() -> None:
    problem = case("matmul")
    inputs = make_inputs(problem)
    result = inputs.x @ inputs.weight
    result[-1, -1] += 1.0
    assert error(problem, inputs, result) > TOLERANCE["fp32"]


def test_nan_and_wrong_shapes_are_infinitely_wrong() -> None:
    problem = case("softmax")
    inputs = make_inputs(problem)
    assert error(problem, inputs, torch.full((96, 80), float("nan"))) == float("inf")
    assert error(problem, inputs, torch.zeros(96, 79)) == float("inf")


def test_rms_norm_has_no_preallocated_form_in_torch() -> None:
    problem = case("rms_norm")
    with pytest.raises(NotMeasuredError, match="no rms_norm"):
        torch_out(problem, make_inputs(problem))


def test_work_counts() -> None:
    product = Case("linear_gelu", (2, 3, 5), "bf16")
    assert product.flops == 60
    assert product.bytes == 2 * (10 + 15 + 6 + 3)
    rows = Case("layer_norm", (4, 8), "fp32")
    assert rows.flops == 0
    assert rows.bytes == 4 * (64 + 16)
