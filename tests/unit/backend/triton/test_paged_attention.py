"""Attention to pages on GPUs: compiled for those that are not there, and interpreted."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tessera import op, target
from tessera.compiler.explain.inspection import schedules_of
from tessera.dtypes import bf16, fp8_e4m3, fp32
from tessera.ops import oracle
from tessera.scheduling.families.paged_attention.gpu import space
from tessera.scheduling.families.paged_attention.gpu.lowering import lower_paged_attention_gpu
from tessera.scheduling.families.paged_attention.space import PagedAttentionProblem
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts


@pytest.mark.parametrize("name", ["sm80", "sm90", "sm100", pytest.param("sm120", marks=pytest.mark.whole)])
def test_pages_of_any_size_use_the_matrix_units_and_do_not_spill(name: str) -> None:
    gpu = target.gpu(name)
    posed = [
        PagedAttentionProblem((8, 8), 4, 8192, 128, 128, False, bf16, fp32, gpu, 1, page=page) for page in (16, 64, 24)
    ]
    schedules = [space.default_schedule(each) for each in posed]
    assert [schedule["whole_pages"] for schedule in schedules] == [True, True, False]
    spec = specs.paged_attention(bf16)
    kernels = [aligned(lower_paged_attention_gpu(spec, each, gpu), 16, str(each)) for each in schedules]
    for found in static_facts(kernels, gpu):
        assert isinstance(found, StaticFacts), found
        assert found.spill_bytes == 0
        assert found.instructions["mma.sync"] > 0


def test_steps_of_bytes_are_longer_than_pages_of_16_keys() -> None:
    """Matrix units take 32 keys of 8 bits at least."""
    gpu = target.gpu("sm90")
    posed = PagedAttentionProblem((8, 8), 4, 8192, 128, 128, False, fp8_e4m3, fp32, gpu, 1, page=16)
    schedule = space.default_schedule(posed)
    assert schedule["whole_pages"] is False
    assert space.space(posed).violations(schedule) == ()


@pytest.mark.skipif(
    tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4), reason="Triton 3.6's interpreter needs numpy < 2.4"
)
@pytest.mark.parametrize("page", [32, 12])
@pytest.mark.parametrize("queries", [1, 3])
def test_pages_are_interpreted(page: int, queries: int) -> None:
    """One sequence ends amid a page, one with it, one is empty; what is past a length names no page."""
    generator = torch.Generator().manual_seed(page)
    table = torch.tensor([[3, 1, 1 << 30], [-5, 2, 0], [3, 0, 2]], dtype=torch.int32)
    lengths = torch.tensor([page + 3, 0, 3 * page], dtype=torch.int32)
    q, k, v = (
        torch.randn(shape, generator=generator) for shape in ((3, 4, queries, 24), (4, 2, page, 24), (4, 2, page, 16))
    )
    for pages in (k, v):  # past the lengths of the sequences that have them
        pages[1, :, 3:] = torch.nan
    changes: tuple[dict[str, Any], ...] = ({}, {"window": page + 1, "soft_cap": 2.0})
    for more in changes:
        expected = oracle.reference(op.paged_attention(q, k, v, table, lengths, **more))
        operands = (op.tensor(x, device="interpreter") for x in (q, k, v, table, lengths))
        found = op.paged_attention(*operands, **more)
        assert schedules_of(found.structure)[0]["whole_pages"] is (page == 32)
        torch.testing.assert_close(found.torch().double(), expected, atol=3e-6, rtol=3e-6)
