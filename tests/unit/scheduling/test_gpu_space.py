"""Schedules of products on GPUs: every rule has a name, and the default is legal everywhere."""

from __future__ import annotations

import pytest

from tessera import target
from tessera.dtypes import DType, bf16, fp16, fp32, fp64
from tessera.errors import ScheduleError
from tessera.scheduling import gpu_space
from tessera.scheduling.gpu import contraction_gpu_problem
from tessera.scheduling.gpu_space import GpuContractionProblem
from tessera.scheduling.schedule import KnobValue
from tests.unit.scheduling import specs

ARCHITECTURES = ("sm80", "sm90", "sm100", "gfx942")


def problem(dtype: DType, m: int, n: int, k: int, arch: str = "sm90") -> GpuContractionProblem:
    """A product on a GPU."""
    return contraction_gpu_problem(specs.matmul(dtype), {"m": m, "n": n, "k": k}, target.gpu(arch))


BROKEN: dict[str, tuple[GpuContractionProblem, dict[str, KnobValue]]] = {
    "matrix-unit-shape": (problem(bf16, 4096, 4096, 4096), {"tile": (8, 64, 32)}),
    "shared-memory": (problem(bf16, 4096, 4096, 4096), {"tile": (128, 256, 128), "pipeline_depth": 4}),
    "sums-in-registers": (problem(bf16, 4096, 4096, 4096), {"tile": (256, 256, 32), "warps": 4}),
    "operands-in-registers": (problem(fp32, 4096, 4096, 4096), {"tile": (128, 128, 128), "warps": 4}),
    "threads-per-block": (problem(bf16, 4096, 4096, 4096, "gfx942"), {"warps": 32}),
    "work-per-thread": (problem(bf16, 4096, 4096, 4096), {"tile": (16, 16, 16), "warps": 16}),
    "tile-within-problem": (problem(bf16, 16, 4096, 4096), {"tile": (128, 128, 64)}),
}


def test_every_rule_is_tried() -> None:
    assert {rule.name for rule in gpu_space.RULES} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    posed, changes = BROKEN[name]
    space = gpu_space.space(posed)
    schedule = space.default.replace(**changes)
    assert name in space.violations(schedule)
    with pytest.raises(ScheduleError) as error:
        space.check(schedule)
    assert any(hint.startswith(f"rule {name}: ") for hint in error.value.hints)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [bf16, fp16, fp32, fp64])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1, 4096, 4096), (7, 13, 5), (1024, 1024, 1024), (4096, 16, 64)])
def test_the_default_is_legal(arch: str, dtype: DType, shape: tuple[int, int, int]) -> None:
    space = gpu_space.space(problem(dtype, *shape, arch))
    assert space.violations(space.default) == ()


def test_a_large_bf16_product_on_hopper_starts_from_what_is_known_to_be_good() -> None:
    schedule = gpu_space.default_schedule(problem(bf16, 8192, 8192, 8192))
    assert (schedule["tile"], schedule["pipeline_depth"], schedule["warps"]) == ((128, 256, 64), 3, 8)


def test_a_smaller_product_gives_every_multiprocessor_a_block() -> None:
    posed = problem(bf16, 1024, 1024, 1024)
    bm, bn, _ = gpu_space.default_schedule(posed).integers("tile")
    assert (1024 // bm) * (1024 // bn) >= posed.target.cores


def test_shared_memory_counts_one_stage_less_where_operands_pass_through_registers() -> None:
    hopper, ampere = problem(bf16, 4096, 4096, 4096), problem(bf16, 4096, 4096, 4096, "sm80")
    schedule = gpu_space.default_schedule(hopper)
    assert gpu_space.shared_bytes(schedule, hopper) == 147456
    assert gpu_space.shared_bytes(schedule, ampere) == 98304
