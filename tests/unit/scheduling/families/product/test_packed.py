"""Products over packed constants: whatever legal schedule is drawn, the kernel computes what torch does in float64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType, bf16, fp16, fp32, fp64
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.scheduling.families.product.forms import PackedPanels
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.space import default_schedule, space
from tessera.scheduling.lowering.spec import ContractionSpec, Panels
from tests.unit.scheduling import specs
from tests.unit.scheduling.families.product.test_contraction import SMALL, operand, result
from tests.unit.scheduling.problems import AVX512, contraction_problem
from tests.whole import examples

EXTENTS = st.integers(1, 40)


def over_panels(spec: ContractionSpec, panels: Panels) -> ContractionSpec:
    """The product with its second operand packed."""
    arguments = list(spec.arguments)
    b = arguments[1]
    arguments[1] = replace(b, axes=(*b.axes[:-2], "n", "k"), strides=(None,) * len(b.axes), panels=panels)
    return replace(spec, arguments=tuple(arguments))


def packed(b: torch.Tensor, panels: Panels) -> torch.Tensor:
    """The panels of a matrix, in memory full of poison before."""
    form = PackedPanels(panels)
    shape = form.shape(tuple(b.shape))
    poison = float("nan") if b.is_floating_point() else 99
    made = torch.full(shape if panels.group > 1 else shape[:-1], poison, dtype=b.dtype)
    form.fill(b, made.view(-1).view(torch.uint8))
    return made


@settings(max_examples=examples(20, 40))
@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from((fp32, bf16, fp16, fp64)), st.booleans(), st.integers(0, 1 << 20))
def test_any_schedule_reads_panels(m: int, n: int, k: int, dtype: DType, batched: bool, seed: int) -> None:
    extents = {"m": m, "n": n, "k": k}
    pairs = dtype is bf16
    panels = Panels(16, 2) if pairs else Panels(32)
    spec = over_panels(specs.matmul(dtype, batch=("b0",) if batched else (), bias=True), panels)
    problem = replace(
        contraction_problem(spec, m, n, k, 3 if batched else 1, AVX512, pairs), b_panels=panels.width, b_contiguous=""
    )
    schedule = space(problem).restricted(SMALL).draw(random.Random(seed), 10_000)
    module = lower_contraction(replace(spec, one_block=schedule.integers("tile")[2] >= k), schedule, pairs)
    verify(module)
    a, b = operand("mk", extents, dtype, 1, batched), operand("kn", extents, dtype, 2, batched)
    bias, out = operand("n", extents, dtype, 3), result(m, n, dtype, batched)
    run_kernel(module, [a, packed(b, panels), bias, out], partition=random.Random(seed))
    expected = a.double() @ b.double() + bias.double()
    precision = torch.finfo(fp32.torch if dtype.itemsize == 2 else dtype.torch).eps
    bound = torch.finfo(dtype.torch).eps * expected.abs() + 16 * precision * k**0.5
    assert bool(((out.double() - expected).abs() <= bound).all())


@given(st.integers(1, 600), st.integers(1, 5000), st.integers(1, 20_000), st.booleans(), st.sampled_from((1, 2, 3)))
def test_defaults_are_legal(m: int, n: int, k: int, pairs: bool, workers: int) -> None:
    spec = over_panels(specs.matmul(bf16 if pairs else fp32), Panels(32, 2 if pairs else 1))
    problem = contraction_problem(spec, m, n, k, 1, AVX512, pairs)
    problem = replace(problem, b_panels=32, b_contiguous="", workers=workers)
    assert space(problem).violations(default_schedule(problem)) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
@pytest.mark.parametrize("panels", [Panels(16), Panels(32, 2), Panels(32, 4)])
@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 3))
def test_panels_hold_every_element_and_zeros_beside(
    dtype: torch.dtype, panels: Panels, n: int, k: int, batch: int
) -> None:
    b = torch.arange(1, batch * k * n + 1).remainder(127).to(dtype).reshape(batch, k, n)
    form = PackedPanels(panels)
    made = torch.full(form.shape(tuple(b.shape)), 99, dtype=dtype)
    form.fill(b, made.view(-1).view(torch.uint8))
    flat = made.permute(0, 2, 4, 1, 3).reshape(batch, made.shape[2] * panels.group, -1)
    assert torch.equal(flat[:, :k, :n], b)
    assert not flat[:, k:].any()
    assert not flat[:, :, n:].any()
