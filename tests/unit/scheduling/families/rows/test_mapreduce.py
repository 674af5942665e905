"""Maps and reductions: whatever legal schedule is drawn, the lowered kernel computes what torch does in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType, bf16, bool_, fp32, fp64, int32, int64
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.verification import verify
from tessera.scheduling.families.rows.lowering import identity, lower_map_reduce
from tessera.scheduling.families.rows.scratch import kept_values
from tessera.scheduling.families.rows.space import space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import MapReduceSpec
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AVX2, AVX512, map_reduce_problem
from tests.whole import examples

ROWS, COLUMNS = st.integers(1, 6), st.integers(1, 90)
SEEDS = st.integers(0, 1 << 20)


def run(spec: MapReduceSpec, arguments: list[Any], rows: int, columns: int, seed: int) -> None:
    """Runs the kernel of a random legal schedule, as it is or read back from its text, into the last argument."""
    target = random.Random(seed).choice((AVX2, AVX512))
    schedule = space(map_reduce_problem(spec, rows, columns, target)).draw(random.Random(seed))
    module = lower_map_reduce(spec, schedule, target.vector_bits // 32)
    verify(module)
    if seed % 2:
        module = parse(print_module(module))
    run_kernel(module, arguments, partition=random.Random(seed))


def matrix(rows: int, columns: int, dtype: DType = fp32, seed: int = 0) -> torch.Tensor:
    """Random elements in padded rows."""
    values = torch.randn(rows, columns + 5, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype.torch)[:, :columns]


@settings(max_examples=examples(7, 15))
@given(ROWS, COLUMNS, st.sampled_from((fp32, bf16, fp64)), SEEDS)
def test_softmax(rows: int, columns: int, dtype: DType, seed: int) -> None:
    x, out = matrix(rows, columns, dtype), torch.empty(rows, columns, dtype=dtype.torch)
    run(specs.rows("softmax", dtype), [x, out], rows, columns, seed)
    specs.close(out, x.double().softmax(-1))


@settings(max_examples=examples(7, 15))
@given(ROWS, COLUMNS, st.sampled_from((fp32, bf16)), SEEDS)
def test_layer_norm(rows: int, columns: int, dtype: DType, seed: int) -> None:
    x, out = matrix(rows, columns, dtype), torch.empty(rows, columns, dtype=dtype.torch)
    weight, bias = (matrix(1, columns, dtype, seed=number)[0] for number in (1, 2))
    run(specs.rows("layer_norm", dtype, 2, eps=1e-3), [x, weight, bias, out], rows, columns, seed)
    expected = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-3)
    specs.close(out, expected, 4.0)


REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "max": torch.amax,
    "min": torch.amin,
    "argmax": torch.argmax,
}


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("by_rows", [True, False])
@settings(max_examples=examples(7, 15))
@given(ROWS, COLUMNS, SEEDS)
def test_reductions(kind: str, by_rows: bool, rows: int, columns: int, seed: int) -> None:
    spec = specs.reduction(kind, fp32, by_rows)
    x = matrix(rows, columns)
    out = torch.empty(rows if by_rows else columns, dtype=spec.arguments[1].dtype.torch)
    run(spec, [x, out], rows, columns, seed)
    specs.close(out, REDUCTIONS[kind](x.double(), dim=int(by_rows)), max(rows, columns) ** 0.5)


@pytest.mark.parametrize("dtype", [bool_, int32, int64])
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("by_rows", [True, False])
def test_reductions_of_integers(dtype: DType, kind: str, by_rows: bool) -> None:
    x = torch.randint(-9, 9, (5, 43), generator=torch.Generator().manual_seed(1))
    x = (x > 6) if dtype is bool_ else x.to(dtype.torch)
    out = torch.empty(5 if by_rows else 43, dtype=dtype.torch)
    run(specs.reduction(kind, dtype, by_rows), [x, out], 5, 43, 1)
    assert torch.equal(out, REDUCTIONS[kind](x, dim=int(by_rows)))


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("kind", ["max", "min", "sum"])
def test_one_nan_is_the_result(kind: str, by_rows: bool) -> None:
    x = matrix(6, 37)
    x[2, 30] = float("nan")
    out = torch.empty(6 if by_rows else 37)
    run(specs.reduction(kind, fp32, by_rows), [x, out], 6, 37, 3)
    assert out.isnan().nonzero().tolist() == [[2 if by_rows else 30]]


@settings(max_examples=examples(7, 15))
@given(ROWS, COLUMNS, SEEDS)
def test_maps_of_matrices_vectors_and_numbers(rows: int, columns: int, seed: int) -> None:
    x, y, out = matrix(rows, columns), matrix(1, columns, seed=1)[0], torch.empty(rows, columns)
    run(specs.add_scaled(fp32), [x, y, 2.5, out], rows, columns, seed)
    specs.close(out, x.double() + 2.5 * y.double(), 4.0)


def test_dear_values_are_kept_or_computed_again() -> None:
    spec = specs.rows("softmax", fp32)
    (kept,) = kept_values(spec)
    assert kept.operation == "exp"
    x = matrix(3, 100)
    outs = []
    for keep in (0, 1024):
        outs.append(torch.empty(3, 100))
        schedule = Schedule(tile=(1, 16), keep=keep, ahead=False, nontemporal=False, parallel="outer", fusion=True)
        module = lower_map_reduce(spec, schedule, 8)
        assert ("tessera.tile.alloc" in print_module(module)) == bool(keep)
        run_kernel(module, [x, outs[-1]])
    assert torch.equal(*outs)


def test_chains_of_maps_are_kept_as_a_whole_where_they_are_dear() -> None:
    """What a gelu gives is needed in two passes, its erf in none but the first; negating again costs nothing."""
    chain, weight = kept_values(specs.rows("softmax", fp32, before=["gelu"]))
    assert (chain.operation, weight.operation) == ("mul", "exp")
    assert [value.operation for value in kept_values(specs.rows("softmax", fp32, before=["neg", "relu"]))] == ["exp"]
    x, out = matrix(3, 100), torch.full((3, 100), float("nan"))
    spec = specs.rows("softmax", fp32, before=["gelu"])
    schedule = Schedule(tile=(1, 16), keep=1024, ahead=False, nontemporal=False, parallel="outer", fusion=True)
    run_kernel(lower_map_reduce(spec, schedule, 8), [x, out])
    specs.close(out, torch.softmax(torch.nn.functional.gelu(x.double()), -1), 1.0)


def test_the_next_row_is_fetched_once_and_changes_no_result() -> None:
    x = matrix(3, 100)
    outs = []
    for ahead in (False, True):
        outs.append(torch.empty(3, 100))
        schedule = Schedule(tile=(1, 16), keep=1024, ahead=ahead, nontemporal=False, parallel="outer", fusion=True)
        module = lower_map_reduce(specs.rows("softmax", fp32), schedule, 8)
        assert print_module(module).count("tessera.tile.prefetch") == int(ahead)
        run_kernel(module, [x, outs[-1]])
    assert torch.equal(*outs)


@pytest.mark.parametrize("dtype", [fp32, fp64, int32, int64, bool_])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_the_neutral_element_changes_nothing(kind: str, dtype: DType) -> None:
    values = torch.tensor([0, 1]).to(dtype.torch)
    neutral = torch.tensor(identity(kind, dtype), dtype=dtype.torch)
    combine = torch.maximum if kind == "max" else torch.minimum
    assert torch.equal(combine(values, neutral), values)
