"""Schedules drawn from the whole space: what the rules permit compiles, fits a multiprocessor, and is as asked for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tessera import target
from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.product.gpu.problem import contraction_gpu_problem
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs
from tests.whole import examples

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts


@pytest.mark.parametrize(
    ("name", "math"), [("sm80", None), ("sm90", None), ("sm100", None), ("gfx942", None), ("sm90", "tf32")]
)
def test_what_the_rules_permit_compiles_and_fits(name: str, math: str | None) -> None:
    gpu = target.gpu(name)
    assert gpu.gpu is not None
    spec = replace(specs.matmul(fp32), math=math) if math else specs.matmul(bf16)
    space = gpu_space.space(contraction_gpu_problem(spec, {"m": 4096, "n": 4096, "k": 4096}, gpu))
    random = Random(7)
    # The parts of a split K are compiled as any product: one kernel stands for both.
    schedules = [space.default, *(space.draw(random, 200).replace(split_k=1) for _ in range(examples(1, 3)))]
    candidates = [aligned(lower_contraction_gpu(spec, schedule), note=str(schedule)) for schedule in schedules]
    for schedule, facts in zip(schedules, static_facts(candidates, gpu), strict=True):
        assert isinstance(facts, StaticFacts), (schedule, facts)
        assert facts.occupancy(gpu).blocks >= 1, schedule
        assert facts.shared_bytes <= gpu.gpu.max_shared_bytes_per_block, schedule
        assert facts.shared_bytes <= gpu_space.shared_bytes(schedule, space.problem) * 1.05 + 1024, schedule
