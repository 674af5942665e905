"""Attention of few queries on GPUs, whose keys blocks of their own walk part by part, by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera import op, target
from tessera.compiler import pipeline
from tessera.compiler.device.gpu import gpu_sites
from tessera.errors import ScheduleError, TuneSpaceEmptyError
from tessera.runtime.plans.gpu_plan import DevicePlan

pytest.importorskip("triton", reason="the extra `triton` is not installed")


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """In float64, 0 where no key is seen."""
    scores = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1).nan_to_num(0.0) @ v.double()


@pytest.mark.parametrize(
    ("queries", "keys", "head", "parts", "knobs"),
    [
        (1, 517, 17, 4, {}),
        (40, 600, 16, 4, {"causal": True}),
        (3, 515, 16, 4, {"mask": "some"}),
    ],
)
def test_parts_of_keys_are_joined_to_the_whole(
    queries: int, keys: int, head: int, parts: int, knobs: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(2, length, head, generator=generator) for length in (queries, keys, keys))
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if "causal" in knobs:
        seen = torch.tril(seen, keys - queries)
    if "mask" in knobs:
        seen = torch.rand(queries, keys, generator=generator) > 0.5
        seen[0] = seen[1, :200] = False  # a query that sees nothing, and one that nothing of a part is shown to
        knobs = {"mask": op.tensor(seen, device="interpreter")}
    result = op.flash_attention(*(op.tensor(each, device="interpreter") for each in (q, k, v)), **knobs)
    plan = pipeline.plan(result.pin(parts=parts).structure)
    assert isinstance(plan, DevicePlan)
    assert [step.kernel.kernel.entry for step in plan.steps] == ["flash_attention_0_parts", "flash_attention_0_joined"]
    found = result.pin(parts=parts).torch()
    torch.testing.assert_close(found.double(), attended(q, k, v, seen), atol=1e-5, rtol=1e-5)


def test_decoding_takes_as_many_parts_as_fill_the_gpu_and_long_queries_none() -> None:
    def parts(gpu: str, queries: int, keys: int) -> object:
        shapes = [(1, 8, queries, 128), (1, 8, keys, 128), (1, 8, keys, 128)]
        site = gpu_sites(op.flash_attention, shapes, "bf16", target.gpu(gpu))[0]
        return site.launch.call.shaped.extents.get("part", 1)

    assert parts("h100", 1, 32_768) == 32  # 8 heads on 132 multiprocessors, two programs each
    assert parts("h100", 1, 512) == 1
    assert parts("h100", 4096, 4096) == 1


def test_parts_shorter_than_a_block_are_refused_by_name() -> None:
    q, k = (op.tensor(torch.zeros(1, length, 16), device="interpreter") for length in (1, 200))
    with pytest.raises((ScheduleError, TuneSpaceEmptyError)) as caught:
        op.flash_attention(q, k, k).pin(parts=4).eval()
    assert any("parts-of-keys" in hint for hint in caught.value.hints)
