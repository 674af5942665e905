from __future__ import annotations

import pytest
import torch

from tessera.tuning.measure import checking
from tessera.tuning.measure.checking import FullReference, check_output
from tessera.tuning.measure.workload import OperandSpec, materialize

LARGE = (2000, 600)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4, 5), LARGE])
def test_rounding_of_the_dtype_is_allowed(name: str, shape: tuple[int, ...]) -> None:
    dtype = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]
    exact = normal(*shape).double()
    assert check_output(0, FullReference(exact), name).error(exact.to(dtype)) is None


@pytest.mark.parametrize("row", [0, 1, 999, 1234, 1999])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_wrong_tile_anywhere_in_a_large_output_is_found(row: int, dtype: str) -> None:
    good = normal(*LARGE)
    bad = good.clone()
    bad[row, 300:332] = 0
    check = check_output(0, FullReference(good), dtype)
    assert len(check.rows) < 100, "only a sample of the rows is compared"
    assert check.error(good) is None
    assert check.error(bad) is not None


def test_message_names_the_worst_element() -> None:
    good = torch.ones(4, 4)
    bad = good.clone()
    bad[2, 3] = 5.0
    assert check_output(0, FullReference(good), "fp32").error(bad) == "element (2, 3) is 5, reference 1"


def test_special_values_must_be_equal() -> None:
    reference = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]])
    check = check_output(0, FullReference(reference), "fp32")
    assert check.error(reference.clone()) is None
    for column, value in ((0, 0.0), (1, 1e30), (2, float("inf")), (3, float("nan"))):
        bad = reference.clone()
        bad[0, column] = value
        assert check.error(bad) is not None


def test_integers_are_exact() -> None:
    good = torch.arange(12).reshape(3, 4) + 10**12
    check = check_output(0, FullReference(good), "int64")
    assert check.error(good) is None
    assert check.error(good + 1) is not None


def test_projections_find_what_no_checked_row_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "FULL_ELEMENTS", 1000)
    a, b = normal(300, 70), normal(70, 90, seed=1)
    product = a @ b
    check = check_output(0, FullReference(product.double()), "fp32")
    assert check.projections.shape == (300, 2)
    assert check.error(product) is None
    product[150] = product[151]
    assert check.error(product) is not None


def test_an_empty_output_is_right() -> None:
    empty = torch.zeros(0, 5)
    assert check_output(0, FullReference(empty), "fp32").error(empty) is None


@pytest.mark.parametrize(
    "spec",
    [
        OperandSpec((3, 4), (4, 1), "fp32", seed=5),
        OperandSpec((3, 4), (1, 3), "bf16", "positive"),
        OperandSpec((3, 4), (9, 2), "fp64"),
        OperandSpec((3, 4), (0, 1), "int64"),
        OperandSpec((3,), (1,), "bool"),
        OperandSpec((), (), "fp16", "zero"),
        OperandSpec((0, 4), (4, 1), "fp32"),
    ],
)
def test_a_recipe_gives_the_same_operand_each_time(spec: OperandSpec) -> None:
    first, second = materialize(spec), materialize(spec)
    assert tuple(first.tensor.shape) == spec.shape
    assert first.tensor.numel() == 0 or first.tensor.stride() == spec.strides
    assert torch.equal(first.tensor, second.tensor)
    assert first.intact()


def test_seeds_and_fills_matter() -> None:
    shape, strides = (64, 64), (64, 1)
    draws = [materialize(OperandSpec(shape, strides, "fp32", seed=seed)).tensor for seed in (1, 2)]
    assert not torch.equal(*draws)
    assert bool((materialize(OperandSpec(shape, strides, "fp32", "positive")).tensor > 0).all())
    assert bool((materialize(OperandSpec(shape, strides, "fp32", "zero")).tensor == 0).all())


@pytest.mark.parametrize("index", [63, -64])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int32", "bool"])
def test_a_write_beside_an_operand_is_seen(index: int, dtype: str) -> None:
    operand = materialize(OperandSpec((8,), (1,), dtype))
    operand.poison()
    assert operand.intact()
    operand.storage[index] = 0
    assert not operand.intact()
