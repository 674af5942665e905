"""The kernel that packs a product's second operand: panels as constants have them, whatever lies where."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import target
from tessera.backend.llvm import LLVMBackend
from tessera.dtypes import DType, bf16, fp8_e4m3, fp16, fp32, fp64, int8, int32
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.runtime.plans.calling import call
from tessera.scheduling.families.packing.lowering import PackingProblem, default_schedule, lower_packing, space
from tessera.scheduling.families.packing.operand import packing_spec
from tessera.scheduling.families.product.forms import PackedPanels
from tessera.scheduling.lowering.spec import Panels
from tests.unit.scheduling.problems import AVX512
from tests.whole import examples

KINDS = (
    (fp32, fp32, Panels(32)),
    (fp64, fp64, Panels(16)),
    (bf16, bf16, Panels(32, 2)),
    (fp16, fp16, Panels(16)),
    (fp8_e4m3, bf16, Panels(32, 2)),
    (int8, int8, Panels(32, 4)),
    (int8, int8, Panels(16, 4)),
    (int32, int32, Panels(32)),
)
BACKEND = LLVMBackend()


def laid_out(b: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers with columns side by side, rows side by side, or neither."""
    if layout == "columns":
        return b
    if layout == "rows":
        return b.mT.contiguous().mT
    room = torch.zeros((*b.shape[:-1], 3 * b.shape[-1]), dtype=b.dtype)
    room[..., ::3] = b
    return room[..., ::3]


@settings(max_examples=examples(20, 40), deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(0, 3),
    st.sampled_from(KINDS),
    st.sampled_from(("columns", "rows", "neither")),
    st.integers(0, 1 << 20),
)
def test_packing(k: int, n: int, batch: int, kind: tuple[DType, DType, Panels], layout: str, seed: int) -> None:
    dtype, stored, panels = kind
    shape = (batch, k, n) if batch else (k, n)
    b = laid_out((torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 20).to(dtype.torch), layout)
    axes = ("b0", "k", "n") if batch else ("k", "n")
    walked = dict(zip(axes, zip(b.shape, b.stride(), strict=True), strict=True))
    problem = PackingProblem(n, k, max(batch, 1), panels.width, stored, layout == "rows", AVX512, 2)
    schedule = space(problem).draw(random.Random(seed))
    module = lower_packing(packing_spec("packing", dtype, stored, panels, walked), schedule)
    verify(module)

    form = PackedPanels(panels, stored)
    extents = form.shape(shape) if panels.group > 1 else form.shape(shape)[:-1]
    expected, interpreted, computed = (torch.full(extents, 99, dtype=stored.torch) for _ in range(3))
    form.fill(b, expected.view(-1).view(torch.uint8))
    run_kernel(module, [b, interpreted], partition=random.Random(seed))
    call(BACKEND.load(BACKEND.compile(module, target.detect(), keep=False)), [b, computed], workers=2)
    assert torch.equal(interpreted.double(), expected.double())
    assert torch.equal(computed.double(), expected.double())


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("workers", [1, 2, 16])
def test_the_default_is_legal(batch: int, workers: int) -> None:
    problem = PackingProblem(300, 200, batch, 32, fp32, False, AVX512, workers)
    assert space(problem).violations(default_schedule(problem)) == ()
