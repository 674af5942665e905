"""Products with short sides: bf16 pairs and others read A in place, where neither rows nor K are whole tiles."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tessera.dtypes import bf16
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.space import space
from tests.unit.scheduling import specs
from tests.unit.scheduling.families.product.test_contraction import operand, result
from tests.unit.scheduling.problems import AVX512, contraction_problem

LIMITS = {torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def check(a: torch.Tensor, b: torch.Tensor) -> None:
    """Against float64, relative to the largest element."""
    out = torch.full((*a.shape[:-1], b.shape[-1]), float("nan"), dtype=a.dtype)
    op.matmul(a, b, out=out)
    exact = a.double() @ b.double()
    limit = LIMITS[a.dtype]
    torch.testing.assert_close(out.double(), exact, rtol=limit, atol=limit * max(1.0, exact.abs().max().item()))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(129, 300),
    st.integers(1, 66),
    st.one_of(st.integers(1, 70), st.sampled_from((255, 257, 511, 513, 1025))),
    st.sampled_from((torch.bfloat16, torch.float32, torch.float64)),
    st.booleans(),
    st.booleans(),
)
def test_many_rows(m: int, n: int, k: int, dtype: torch.dtype, padded: bool, by_k: bool) -> None:
    a = torch.randn(m, k + 3 * padded).to(dtype)[:, :k]
    b = torch.randn(n, k).to(dtype).T if by_k else torch.randn(k, n).to(dtype)
    check(a, b)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 70), st.integers(1, 70), st.integers(1, 70))
def test_batches_of_small_bf16(batch: int, m: int, n: int, k: int) -> None:
    check(torch.randn(batch, m, k).bfloat16(), torch.randn(batch, k, n).bfloat16())


@pytest.mark.parametrize(("m", "n", "k"), [(13, 17, 16385), (64, 64, 20001), (61, 128, 16999)])
def test_deep_sums_of_bf16(m: int, n: int, k: int) -> None:
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    check(a, b)
    check(a, b.T.contiguous().T)


@pytest.mark.parametrize("k", [7, 8, 300, 700])
def test_what_is_no_number_stays_in_its_row(k: int) -> None:
    a, b = torch.randn(133, k).bfloat16(), torch.randn(k, 5).bfloat16()
    a[131, k - 1], a[3, 0] = float("nan"), float("inf")
    out = op.matmul(a, b).torch()
    exact = a.double() @ b.double()
    assert torch.equal(out.isnan(), exact.isnan())
    assert torch.equal(out.isinf(), exact.isinf())


def test_without_depth_or_rows() -> None:
    assert torch.equal(
        op.matmul(torch.ones(200, 0).bfloat16(), torch.ones(0, 6).bfloat16()).torch(), torch.zeros(200, 6).bfloat16()
    )
    assert op.matmul(torch.ones(0, 8).bfloat16(), torch.ones(8, 6).bfloat16()).torch().shape == (0, 6)


@settings(max_examples=10, deadline=None)
@given(st.integers(129, 150), st.integers(1, 40), st.integers(1, 30), st.sampled_from(("kn", "nk")), st.integers(0, 99))
def test_defaults_of_bf16_pairs_are_interpreted_alike(m: int, n: int, k: int, b_axes: str, seed: int) -> None:
    spec = specs.matmul(bf16, b_axes=b_axes)
    problem = contraction_problem(spec, m, n, k, 1, AVX512, True)
    schedules = space(problem)
    schedule = schedules.default
    assert schedules.violations(schedule) == ()
    assert not schedule["pack_a"]
    module = lower_contraction(replace(spec, one_block=schedule.integers("tile")[2] >= k), schedule, True)
    extents = {"m": m, "n": n, "k": k}
    a, b, out = operand("mk", extents, bf16, 1), operand(b_axes, extents, bf16, 2), result(m, n, bf16)
    run_kernel(module, [a, b, out], partition=random.Random(seed))
    specs.close(out, a.double() @ (b if b_axes == "kn" else b.T).double(), k**0.5)
