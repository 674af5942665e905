"""Tile IR in the shape of GPUs, run by the interpreter: right for odd shapes whatever the tile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera.dtypes import DType, bf16, fp16, fp32, fp64
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.tile import operations as tile
from tessera.ir.verification import verify
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.rows.gpu.lowering import LONGEST_ROW, lower_map_reduce_gpu, map_reduce_gpu_schedule
from tessera.scheduling.language.schedule import Schedule
from tests.unit.scheduling import specs
from tests.whole import examples

EXTENTS = st.integers(1, 90)
SEEDS = st.integers(0, 1 << 20)
TILES = st.sampled_from(((16, 16, 16), (32, 64, 16), (64, 32, 32), (16, 128, 64)))


def run(module: ModuleOp, arguments: list[Any], seed: int) -> None:
    verify(module)
    run_kernel(module, arguments, partition=random.Random(seed))


def product(m: int, n: int, k: int, dtype: DType = fp32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and memory for the result, which must all be overwritten."""
    generator = torch.Generator().manual_seed(m * 10_000 + n * 100 + k)
    a = torch.randn(m, k, generator=generator).to(dtype.torch)
    b = torch.randn(k, n, generator=generator).to(dtype.torch)
    return a, b, torch.full((m, n), float("nan"), dtype=dtype.torch)


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, TILES, SEEDS)
def test_products_with_epilogues(m: int, n: int, k: int, shape: tuple[int, ...], seed: int) -> None:
    a, b, out = product(m, n, k)
    bias = torch.randn(n)
    schedule = Schedule(tile=shape, warps=4, pipeline_depth=3)
    run(lower_contraction_gpu(specs.matmul(fp32, bias=True, activation="gelu"), schedule), [a, b, bias, out], seed)
    specs.close(out, torch.nn.functional.gelu(a.double() @ b.double() + bias.double()), k**0.5)


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, TILES, SEEDS)
def test_prologues_of_both_operands_count_nothing_beyond_k(
    m: int, n: int, k: int, shape: tuple[int, ...], seed: int
) -> None:
    # exp makes 1 of the zeros that are read beyond K.
    a, b, out = product(m, n, k)
    module = lower_contraction_gpu(specs.matmul(fp32, prologue="exp"), Schedule(tile=shape))
    run(module, [a, b, out], seed)
    specs.close(out, a.double().exp() @ b.double(), 8 * k**0.5)


@settings(max_examples=examples(10, 20))
@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from((bf16, fp16, fp64)), SEEDS)
def test_products_of_other_dtypes(m: int, n: int, k: int, dtype: DType, seed: int) -> None:
    a, b, out = product(m, n, k, dtype)
    run(lower_contraction_gpu(specs.matmul(dtype), Schedule(tile=(32, 32, 16))), [a, b, out], seed)
    specs.close(out, a.double() @ b.double(), k**0.5)


@pytest.mark.parametrize("a_axes", ["mk", "km"])
@pytest.mark.parametrize("b_axes", ["kn", "nk"])
def test_transposed_operands_are_read_as_they_lie(a_axes: str, b_axes: str) -> None:
    a, b, out = product(37, 71, 53)
    module = lower_contraction_gpu(specs.matmul(fp32, a_axes=a_axes, b_axes=b_axes), Schedule(tile=(32, 32, 16)))
    left, right = (a if a_axes == "mk" else a.T.contiguous()), (b if b_axes == "kn" else b.T.contiguous())
    run(module, [left, right, out], 0)
    specs.close(out, a.double() @ b.double(), 8.0)


@pytest.mark.parametrize("shared", [True, False])
def test_batches_are_programs(shared: bool) -> None:
    a, out = torch.randn(3, 20, 17), torch.empty(3, 20, 33)
    b = torch.randn(17, 33) if shared else torch.randn(3, 17, 33)
    spec = specs.matmul(fp32, batch=("b0",), b_batch=() if shared else None)
    run(lower_contraction_gpu(spec, Schedule(tile=(16, 16, 16))), [a, b, out], 1)
    specs.close(out, a.double() @ b.double(), 5.0)


def test_an_empty_sum_is_zero() -> None:
    a, b, out = product(5, 7, 0)
    run(lower_contraction_gpu(specs.matmul(fp32), Schedule(tile=(16, 16, 16))), [a, b, out], 0)
    assert torch.equal(out, torch.zeros(5, 7))


def test_16_bit_operands_are_multiplied_as_they_are() -> None:
    module = lower_contraction_gpu(specs.matmul(bf16), Schedule(tile=(16, 16, 16)))
    (mma,) = [op for op in module.walk() if isinstance(op, tile.MmaOp)]
    assert mma.dtype.data == "bf16"
    # A prologue computes in fp32, and so the product is of fp32.
    module = lower_contraction_gpu(specs.matmul(bf16, prologue="relu"), Schedule(tile=(16, 16, 16)))
    (mma,) = [op for op in module.walk() if isinstance(op, tile.MmaOp)]
    assert mma.dtype.data == "fp32"


# -- rows -------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(7, 15))
@given(st.integers(1, 9), st.integers(1, 200), st.booleans(), st.sampled_from((fp32, bf16)), SEEDS)
def test_softmax_whole_and_in_a_loop(rows: int, columns: int, whole: bool, dtype: DType, seed: int) -> None:
    spec = specs.rows("softmax", dtype)
    looped = Schedule(tile=(1, 32), whole_row=False, warps=1)
    schedule = map_reduce_gpu_schedule(spec, columns) if whole else looped
    x = torch.randn(rows, columns).to(dtype.torch)
    out = torch.empty_like(x)
    run(lower_map_reduce_gpu(spec, schedule), [x, out], seed)
    specs.close(out, x.double().softmax(-1))


@pytest.mark.parametrize("columns", [1, 31, 64, 100])
def test_layer_norm_centres_before_it_squares(columns: int) -> None:
    spec = specs.rows("layer_norm", fp32, 2, eps=1e-3)
    x, weight, bias = 1000 + torch.randn(4, columns), torch.randn(columns), torch.randn(columns)
    out = torch.empty(4, columns)
    run(lower_map_reduce_gpu(spec, map_reduce_gpu_schedule(spec, columns)), [x, weight, bias, out], 0)
    expected = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-3)
    # The mean itself is rounded: 1000 has an eps of 1000 times fp32's.
    specs.close(out, expected, 1000.0)


REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "argmax": torch.argmax,
}


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (7, 100), (40, 5)])
def test_reductions(kind: str, by_rows: bool, shape: tuple[int, int]) -> None:
    spec = specs.reduction(kind, fp32, by_rows)
    x = torch.randn(shape)
    out = torch.empty(shape[0] if by_rows else shape[1], dtype=spec.arguments[1].dtype.torch)
    run(lower_map_reduce_gpu(spec, map_reduce_gpu_schedule(spec, shape[1])), [x, out], 0)
    specs.close(out, REDUCTIONS[kind](x.double(), dim=int(by_rows)), 10.0)


def test_maps_take_numbers() -> None:
    spec = specs.add_scaled(fp32)
    x, y, out = torch.randn(7, 100), torch.randn(100), torch.empty(7, 100)
    run(lower_map_reduce_gpu(spec, Schedule(tile=(1, 32), whole_row=False, warps=1)), [x, y, 2.5, out], 0)
    specs.close(out, x.double() + 2.5 * y.double(), 4.0)


# -- schedules --------------------------------------------------------------------------------------------------------


def test_rows_stay_in_one_tile_while_they_fit() -> None:
    spec = specs.rows("softmax", fp32)
    assert map_reduce_gpu_schedule(spec, 1000) == Schedule(tile=(1, 1024), whole_row=True, warps=2)
    assert map_reduce_gpu_schedule(spec, LONGEST_ROW)["whole_row"]
    assert map_reduce_gpu_schedule(spec, LONGEST_ROW + 1) == Schedule(tile=(1, 4096), whole_row=False, warps=8)


def test_hints_are_attributes_of_the_kernel() -> None:
    module = lower_contraction_gpu(specs.matmul(fp32), Schedule(tile=(16, 16, 16), warps=2, pipeline_depth=4))
    (kernel,) = module.ops
    assert str(kernel.attributes["warps"]) == "2 : i64"
    assert str(kernel.attributes["pipeline_depth"]) == "4 : i64"
