"""Matrix products: whatever legal schedule is drawn, the lowered kernel computes what torch does in float64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera.dtypes import DType, bf16, fp16, fp32, fp64
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.verification import verify
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.space import space
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import ContractionSpec
from tessera.scheduling.lowering.tails import block_tails
from tessera.target import Target
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AVX2, AVX512, contraction_problem
from tests.whole import examples

EXTENTS = st.integers(1, 26)
SEEDS = st.integers(0, 1 << 20)
# Few steps of a small machine: the interpreter walks every register tile.
SMALL: dict[str, list[KnobValue]] = {"tile": [(48, 32, 8), (48, 32, 16), (96, 128, 64)], "unroll": [1, 4]}


def lowered(
    spec: ContractionSpec, m: int, n: int, k: int, seed: int, target: Target = AVX2, native_bf16: bool = False
) -> tuple[ModuleOp, Schedule]:
    """The kernel of a random legal schedule."""
    batch = 3 if spec.batch else 1
    problem = contraction_problem(spec, m, n, k, batch, target, native_bf16)
    schedule = space(problem).restricted(SMALL).draw(random.Random(seed), 10_000)
    spec = replace(spec, one_block=schedule.integers("tile")[2] >= k)
    module = lower_contraction(spec, schedule, native_bf16)
    verify(module)
    return module, schedule


def operand(axes: str, extents: dict[str, int], dtype: DType, seed: int, batch: bool = False) -> torch.Tensor:
    """Random elements; rows are padded, so that only the promised stride is 1."""
    generator = torch.Generator().manual_seed(seed)
    shape = [*([3] if batch else []), *(extents[axis] for axis in axes)]
    padded = torch.randn([*shape[:-1], shape[-1] + 3], generator=generator).to(dtype.torch)
    return padded[..., : shape[-1]]


def result(m: int, n: int, dtype: DType, batch: bool = False) -> torch.Tensor:
    """Memory full of NaN, which must all be overwritten."""
    return torch.full([*([3] if batch else []), m, n], float("nan"), dtype=dtype.torch)


@settings(max_examples=examples(10, 20))
@given(
    EXTENTS,
    EXTENTS,
    st.integers(1, 200),
    st.sampled_from(("mk", "km")),
    st.sampled_from(("rms_norm", "layer_norm")),
    SEEDS,
)
def test_rows_are_normalized_on_the_way(m: int, n: int, k: int, a_axes: str, norm: str, seed: int) -> None:
    spec = specs.matmul(fp32, a_axes=a_axes, prologue=norm)
    problem = contraction_problem(spec, m, n, k)
    sizes: dict[str, list[KnobValue]] = {"tile": [(16, 32, 256), (48, 32, 256)], "unroll": [1, 4]}
    schedule = space(problem).restricted(sizes).draw(random.Random(seed), 10_000)
    assert schedule["pack_a"]
    module = lower_contraction(spec, schedule, False)
    verify(module)
    extents = {"m": m, "n": n, "k": k}
    a, b, out = operand(a_axes, extents, fp32, seed), operand("kn", extents, fp32, seed + 1), result(m, n, fp32)
    run_kernel(module, [a, b, out])
    rows = (a if a_axes == "mk" else a.T).double()
    functional = torch.nn.functional
    if norm == "rms_norm":
        wanted = functional.rms_norm(rows, (k,), eps=1e-6)
    else:
        wanted = functional.layer_norm(rows, (k,), eps=1e-5)
    torch.testing.assert_close(out.double(), wanted @ b.double(), rtol=1e-3, atol=1e-3)


@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from(("mk", "km")), st.sampled_from(("kn", "nk")), SEEDS)
def test_any_schedule_multiplies(m: int, n: int, k: int, a_axes: str, b_axes: str, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    spec = specs.matmul(fp32, a_axes=a_axes, b_axes=b_axes)
    module, _ = lowered(spec, m, n, k, seed, random.Random(seed).choice((AVX2, AVX512)))
    a, b, out = operand(a_axes, extents, fp32, 1), operand(b_axes, extents, fp32, 2), result(m, n, fp32)
    run_kernel(module, [a, b, out], partition=random.Random(seed))
    left, right = (a if a_axes == "mk" else a.T).double(), (b if b_axes == "kn" else b.T).double()
    specs.close(out, left @ right, k**0.5)


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, SEEDS)
def test_epilogues_see_the_finished_sum(m: int, n: int, k: int, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    module, _ = lowered(specs.matmul(fp32, bias=True, activation="gelu"), m, n, k, seed)
    a, b, bias = operand("mk", extents, fp32, 1), operand("kn", extents, fp32, 2), operand("n", extents, fp32, 3)
    out = result(m, n, fp32)
    run_kernel(module, [a, b, bias, out], partition=random.Random(seed))
    specs.close(out, torch.nn.functional.gelu(a.double() @ b.double() + bias.double()), k**0.5)


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, SEEDS)
def test_prologues_run_while_packing(m: int, n: int, k: int, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    module, schedule = lowered(specs.matmul(fp32, prologue="relu"), m, n, k, seed)
    assert schedule["pack_a"]
    a, b, out = operand("mk", extents, fp32, 1), operand("kn", extents, fp32, 2), result(m, n, fp32)
    run_kernel(module, [a, b, out], partition=random.Random(seed))
    specs.close(out, a.double().relu() @ b.double(), k**0.5)


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, st.booleans(), SEEDS)
def test_batches(m: int, n: int, k: int, shared: bool, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    spec = specs.matmul(fp32, batch=("b0",), b_batch=() if shared else None)
    module, _ = lowered(spec, m, n, k, seed)
    a, b = operand("mk", extents, fp32, 1, batch=True), operand("kn", extents, fp32, 2, batch=not shared)
    out = result(m, n, fp32, batch=True)
    run_kernel(module, [a, b, out], partition=random.Random(seed))
    specs.close(out, a.double() @ b.double(), k**0.5)


@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from((bf16, fp16, fp64)), st.booleans(), SEEDS)
def test_other_dtypes(m: int, n: int, k: int, dtype: DType, native_bf16: bool, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    spec = specs.matmul(dtype, bias=True, activation="relu")
    module, _ = lowered(spec, m, n, k, seed, AVX512, native_bf16 and dtype is bf16)
    a, b, bias = operand("mk", extents, dtype, 1), operand("kn", extents, dtype, 2), operand("n", extents, dtype, 3)
    out = result(m, n, dtype)
    run_kernel(module, [a, b, bias, out], partition=random.Random(seed))
    expected = (a.double() @ b.double() + bias.double()).relu()
    # Sums are formed in fp32, and rounded once.
    precision = torch.finfo(fp32.torch if dtype.itemsize == 2 else dtype.torch).eps
    bound = torch.finfo(dtype.torch).eps * expected.abs() + 16 * precision * k**0.5
    assert bool(((out.double() - expected).abs() <= bound).all())


def test_an_empty_sum_is_zero() -> None:
    spec = specs.matmul(fp32, bias=True)
    module = lower_contraction(spec, space(contraction_problem(spec, 5, 7, 0)).default, native_bf16=False)
    bias, out = torch.randn(7), result(5, 7, fp32)
    run_kernel(module, [torch.empty(5, 0), torch.empty(0, 7), bias, out])
    torch.testing.assert_close(out, bias.expand(5, 7))


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, SEEDS)
def test_text_means_the_same(m: int, n: int, k: int, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    module, _ = lowered(specs.matmul(fp32, bias=True, activation="silu"), m, n, k, seed)
    text = print_module(module)
    again = parse(text)
    assert print_module(again) == text
    arguments = [operand("mk", extents, fp32, 1), operand("kn", extents, fp32, 2), operand("n", extents, fp32, 3)]
    outs = [result(m, n, fp32), result(m, n, fp32)]
    for each, out in zip((module, again), outs, strict=True):
        run_kernel(each, [*arguments, out])
    assert torch.equal(*outs)


@given(EXTENTS, EXTENTS, EXTENTS, SEEDS)
def test_the_same_schedule_gives_the_same_kernel(m: int, n: int, k: int, seed: int) -> None:
    spec = specs.matmul(fp32)
    module, schedule = lowered(spec, m, n, k, seed)
    again = Schedule.parse(str(schedule))
    spec = replace(spec, one_block=schedule.integers("tile")[2] >= k)
    assert print_module(lower_contraction(spec, again, native_bf16=False)) == print_module(module)


@pytest.mark.parametrize("rows", range(1, 29))
def test_tails_are_smaller_and_reach_one_row(rows: int) -> None:
    tails = block_tails(rows)
    assert all(tail < rows for tail in tails)
    assert list(tails) == sorted(tails, reverse=True)
