"""Products of few rows by [N, K] weights as dot products, and defaults of products with small or very long sides."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tessera.dtypes import DType, bf16, fp16, fp32
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.space import default_schedule, space
from tessera.scheduling.language.schedule import KnobValue
from tests.property.checking import evaluated
from tests.unit.scheduling import specs
from tests.unit.scheduling.families.product.test_contraction import operand, result
from tests.unit.scheduling.problems import AVX2, AVX512, contraction_problem
from tests.whole import examples


@settings(max_examples=examples(15, 30), deadline=None)
@given(
    st.integers(1, 10),
    st.integers(1, 30),
    st.integers(1, 50),
    st.sampled_from((fp32, bf16, fp16)),
    st.booleans(),
    st.integers(0, 1 << 20),
)
def test_any_schedule_of_dot_products(m: int, n: int, k: int, dtype: DType, batched: bool, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    spec = specs.matmul(dtype, b_axes="nk", batch=("b0",) if batched else (), bias=True, activation="relu")
    problem = contraction_problem(spec, m, n, k, 3 if batched else 1, AVX512)
    wanted: dict[str, list[KnobValue]] = {
        "order": ["dots"],
        "sums": ["registers"],
        "pack_a": [False],
        "pack_b": [False],
    }
    schedule = space(problem).restricted(wanted).draw(random.Random(seed), 10_000)
    module = lower_contraction(replace(spec, one_block=True), schedule, native_bf16=False)
    verify(module)
    a, b = operand("mk", extents, dtype, 1, batched), operand("nk", extents, dtype, 2, batched)
    bias, out = operand("n", extents, dtype, 3), result(m, n, dtype, batched)
    run_kernel(module, [a, b, bias, out], partition=random.Random(seed))
    expected = (a.double() @ b.double().mT + bias.double()).relu()
    bound = torch.finfo(dtype.torch).eps * expected.abs() + 16 * torch.finfo(torch.float32).eps * k**0.5
    assert bool(((out.double() - expected).abs() <= bound).all())


@settings(max_examples=examples(10, 20), deadline=None)
@given(st.integers(1, 9), st.integers(0, 300), st.integers(1, 70), st.sampled_from((torch.float32, torch.bfloat16)))
def test_few_rows_by_weights_as_torch_has_them(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    x, w = torch.randn(m, k).to(dtype), torch.randn(n, k + 3).to(dtype)[:, :k]
    product = op.matmul(x, op.tensor(w).T)
    if k > 1 and n > 1 and m < 9:
        chosen = product.inspect("schedule")
        assert 'order = "dots"' in chosen or (dtype is torch.bfloat16 and 'unit = "matrix"' in chosen)
    exact = x.double() @ w.double().T
    bound = torch.finfo(dtype).eps * exact.abs() + 1e-6 * (x.double().abs() @ w.double().abs().T) + 1e-30
    assert bool(((evaluated(product).double() - exact).abs() <= bound).all())


def test_nan_and_infinities_come_through() -> None:
    x, w = torch.ones(2, 20), torch.ones(5, 20)
    x[0, 19], w[3, 2] = float("nan"), float("inf")
    torch.testing.assert_close(op.matmul(x, op.tensor(w).T).torch(), x @ w.T, equal_nan=True)


@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [
        (1, 3000, 8, 8),
        (1, 2001, 24, 40),
        (1, 500, 64, 64),
        (1, 700, 1, 5),
        (1, 20, 20_000, 30),
        (1, 64, 17_001, 64),
        (37, 16, 16, 16),
        (19, 32, 64, 33),
        (5, 1, 3, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_and_long_sides(batch: int, m: int, k: int, n: int, dtype: torch.dtype) -> None:
    lead = (batch,) if batch > 1 else ()
    x, w = torch.randn(*lead, m, k).to(dtype), torch.randn(*lead, k, n).to(dtype)
    found = evaluated(op.matmul(x, w)).double()
    exact = x.double() @ w.double()
    bound = torch.finfo(dtype).eps * exact.abs() + 2e-6 * (x.double().abs() @ w.double().abs())
    assert bool(((found - exact).abs() <= bound).all())


@settings(max_examples=200)
@given(
    st.sampled_from((1, 2, 8, 12, 13, 64, 128, 129, 1000, 30_000)),
    st.sampled_from((1, 8, 17, 40, 64, 65, 1000, 30_000)),
    st.sampled_from((0, 1, 8, 64, 257, 1000, 16_384, 16_385, 1_000_000)),
    st.sampled_from((1, 4, 1000)),
    st.sampled_from((fp32, bf16)),
    st.sampled_from(("kn", "nk")),
    st.booleans(),
)
def test_defaults_are_legal_for_all_sides(
    m: int, n: int, k: int, batch: int, dtype: DType, b_axes: str, narrow: bool
) -> None:
    spec = specs.matmul(dtype, b_axes=b_axes, batch=("b0",) if batch > 1 else ())
    machine = AVX2 if narrow else AVX512
    problem = contraction_problem(spec, m, n, k, batch, machine, native_bf16=dtype is bf16 and not narrow)
    assert space(problem).violations(default_schedule(problem)) == ()
