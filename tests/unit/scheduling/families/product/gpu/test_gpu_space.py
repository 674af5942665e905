"""Schedules of products on GPUs: every rule has a name, and the default is legal everywhere."""

from __future__ import annotations

from random import Random

import pytest

from tessera import target
from tessera.dtypes import DType, bf16, fp16, fp32, fp64
from tessera.errors import ScheduleError, TuneSpaceEmptyError
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.problem import contraction_gpu_problem
from tessera.scheduling.families.product.gpu.space import GpuContractionProblem
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tests.unit.scheduling import specs

ARCHITECTURES = ("sm80", "sm90", "sm100", "gfx942")


def problem(dtype: DType, m: int, n: int, k: int, arch: str = "sm90") -> GpuContractionProblem:
    """A product on a GPU."""
    return contraction_gpu_problem(specs.matmul(dtype), {"m": m, "n": n, "k": k}, target.gpu(arch))


LARGE = problem(bf16, 4096, 4096, 4096)
ODD = problem(bf16, 4096, 4099, 4096)
MAPPED = contraction_gpu_problem(
    specs.matmul(bf16, prologue="relu"), {"m": 4096, "n": 4096, "k": 4096}, target.gpu("sm90")
)
POINTERS: dict[str, KnobValue] = {
    **dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "pointer"),
    "grid": "flat",
    "epilogue_parts": 1,
}
"""What the changes below are made to, beside the default."""
COPIED: dict[str, KnobValue] = {"a_indexing": "host_descriptor", "b_indexing": "device_descriptor"}

BROKEN: dict[str, tuple[GpuContractionProblem, dict[str, KnobValue]]] = {
    "matrix-unit-shape": (problem(bf16, 4096, 4096, 4096), {"tile": (8, 64, 32)}),
    "shared-memory": (problem(bf16, 4096, 4096, 4096), {"tile": (128, 256, 128), "pipeline_depth": 4}),
    "sums-in-registers": (problem(bf16, 4096, 4096, 4096), {"tile": (256, 256, 32), "warps": 4}),
    "operands-in-registers": (problem(fp32, 4096, 4096, 4096), {"tile": (128, 128, 128), "warps": 4}),
    "threads-per-block": (problem(bf16, 4096, 4096, 4096, "gfx942"), {"warps": 32}),
    "work-per-thread": (problem(bf16, 4096, 4096, 4096), {"tile": (16, 16, 16), "warps": 16}),
    "tile-within-problem": (problem(bf16, 16, 4096, 4096), {"tile": (128, 128, 64)}),
    "warpgroups": (LARGE, {"tile": (64, 64, 64), "warps": 2}),
    "tensor-memory": (
        problem(bf16, 4096, 4096, 4096, "sm100"),
        {"tile": (256, 256, 32), "grid": "fused", "accumulators": 2},
    ),
    "accumulators": (LARGE, {"grid": "fused", "accumulators": 2}),
    "register-cap": (problem(bf16, 4096, 4096, 4096, "gfx942"), {"max_registers": 128}),
    "copy-engine": (problem(bf16, 4096, 4096, 4096, "sm80"), COPIED),
    "descriptor-operand": (MAPPED, {"tile": (64, 64, 32), "a_indexing": "host_descriptor"}),
    "descriptor-alignment": (ODD, {"b_indexing": "host_descriptor"}),
    "descriptor-box": (LARGE, {"tile": (128, 512, 32), "b_indexing": "host_descriptor"}),
    "vector-width": (ODD, {"vector_bytes": 16}),
    "coalesced-access": (LARGE, {"tile": (128, 128, 8)}),
    "eviction-policy": (LARGE, {"pipeline_depth": 3, "a_eviction": "first"}),
    "warp-specialization": (LARGE, {**COPIED, "warps": 8, "warp_specialize": True}),
    "epilogue-parts": (LARGE, {"tile": (128, 32, 32), "epilogue_parts": 4}),
    "split-k": (problem(bf16, 4096, 4096, 4100), {"split_k": 8}),
}


def test_every_rule_is_tried() -> None:
    assert {rule.name for rule in gpu_space.RULES} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    posed, changes = BROKEN[name]
    space = gpu_space.space(posed)
    schedule = space.default.replace(**{**POINTERS, **changes})
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
    assert (schedule["tile"], schedule["pipeline_depth"], schedule["warps"]) == ((128, 256, 64), 4, 8)


def test_a_smaller_product_gives_every_multiprocessor_a_block() -> None:
    posed = problem(bf16, 1024, 1024, 1024)
    bm, bn, _ = gpu_space.default_schedule(posed).integers("tile")
    assert (1024 // bm) * (1024 // bn) >= 0.9 * posed.target.cores


PERMITTED: dict[str, tuple[GpuContractionProblem, dict[str, KnobValue]]] = {
    "loads with warps of their own": (
        LARGE,
        {**COPIED, "tile": (128, 128, 64), "warps": 4, "warp_specialize": True, "grid": "persistent"},
    ),
    "two buffers of sums": (
        problem(bf16, 4096, 4096, 4096, "sm100"),
        {
            "tile": (128, 256, 64),
            "pipeline_depth": 3,
            "grid": "fused",
            "accumulators": 2,
            "epilogue_parts": 2,
            **COPIED,
        },
    ),
    "a column that nothing aligns": (ODD, {"vector_bytes": 2}),
    "a result that is not read again": (LARGE, {"out_eviction": "first"}),
    "operands evicted where loads wait": (LARGE, {"pipeline_depth": 1, "a_eviction": "first", "b_eviction": "last"}),
    "AMD's compiler fuses too": (
        problem(bf16, 4096, 4096, 4096, "gfx942"),
        {"grid": "fused", "tile": (64, 128, 32), "pipeline_depth": 2},
    ),
    "K in parts": (problem(bf16, 256, 256, 65536), {"split_k": 16}),
    "few registers": (LARGE, {"tile": (64, 128, 64), "warps": 8, "max_registers": 96}),
}


@pytest.mark.parametrize("name", PERMITTED)
def test_knobs_are_permitted_where_they_work(name: str) -> None:
    posed, changes = PERMITTED[name]
    space = gpu_space.space(posed)
    assert space.violations(space.default.replace(**{**POINTERS, **changes})) == ()


def test_a_schedule_has_every_knob_once_and_prints_and_reads_itself() -> None:
    space = gpu_space.space(LARGE)
    assert set(space.default) == set(space.by_name)
    assert Schedule.parse(str(space.default)) == space.default
    assert len(space.by_name) == len(space.knobs)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [bf16, fp32])
def test_legal_schedules_are_drawn_from_the_whole_space(arch: str, dtype: DType) -> None:
    space = gpu_space.space(problem(dtype, 4096, 4096, 4096, arch))
    random = Random(11)
    drawn = [space.draw(random, 100) for _ in range(12)]
    assert all(space.violations(schedule) == () for schedule in drawn)
    assert len(set(drawn)) == len(drawn)


def test_a_cap_of_registers_leaves_room_for_the_block() -> None:
    # 168 registers of 512 threads are more than a multiprocessor has; of 256 they are not.
    space = gpu_space.space(LARGE)
    capped = space.default.replace(tile=(64, 256, 32), max_registers=168)
    assert space.violations(capped.replace(warps=16)) == ("register-cap",)
    assert space.violations(capped.replace(warps=8)) == ()


@pytest.mark.parametrize(
    ("pins", "kept"),
    [
        ({"warp_specialize": True}, {"warps": 4, "a_indexing": "host_descriptor"}),
        ({"a_eviction": "last"}, {"tile": (128, 256, 64), "pipeline_depth": 1}),
        ({"tile": (128, 256, 128)}, {"warps": 8, "grid": "flat"}),
        ({"grid": "fused"}, {"tile": (128, 256, 64), "pipeline_depth": 4}),
    ],
)
def test_pinned_knobs_bring_those_that_go_with_them(pins: dict[str, KnobValue], kept: dict[str, KnobValue]) -> None:
    found = gpu_space.space(LARGE).pinned(pins).default
    assert {**found, **pins, **kept} == dict(found)


def test_pins_that_nothing_legal_has_name_the_strictest_rule() -> None:
    with pytest.raises(TuneSpaceEmptyError) as error:
        gpu_space.space(LARGE).pinned({"tile": (64, 64, 64), "warp_specialize": True})
    assert any(hint.startswith("rule warp-specialization rejects 4000 of 4000 ") for hint in error.value.hints)


def test_vectors_are_as_wide_as_every_pointer_allows() -> None:
    def widest(n: int) -> int:
        space = gpu_space.space(problem(bf16, 64, n, 64))
        return max(width for width in (2, 4, 8, 16) if not space.violations(space.default.replace(vector_bytes=width)))

    assert {n: widest(n) for n in (64, 60, 62, 63)} == {64: 16, 60: 8, 62: 4, 63: 2}


def test_shared_memory_counts_one_stage_less_where_operands_pass_through_registers() -> None:
    hopper, ampere = problem(bf16, 4096, 4096, 4096), problem(bf16, 4096, 4096, 4096, "sm80")
    schedule = gpu_space.default_schedule(hopper).replace(pipeline_depth=3, **POINTERS)
    assert gpu_space.shared_bytes(schedule, hopper) == 147456
    assert gpu_space.shared_bytes(schedule, ampere) == 98304
