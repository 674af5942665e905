"""Attention for GPUs that are not there: it uses the matrix units, does not spill, and fits as its rules say."""

from __future__ import annotations

from random import Random

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.dtypes import DType, bf16, bool_, fp8_e4m3, fp8_e5m2, fp32
from tessera.errors import CompileError
from tessera.scheduling.families.attention.gpu import space as gpu_attention_space
from tessera.scheduling.families.attention.gpu.lowering import lower_attention_gpu
from tessera.scheduling.families.attention.gpu.rules import shared_bytes, weights_dtype
from tessera.scheduling.families.attention.space import AttentionProblem
from tessera.scheduling.language.schedule import Schedule
from tessera.target.float8 import rounds_float8
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

TARGETS = ("sm80", "sm90", "sm100", "gfx942")
MULTIPLIES = {"sm80": "mma.sync", "sm90": "wgmma", "sm100": "tcgen05.mma", "gfx942": "v_mfma"}


def problem(
    name: str, head: int, causal: bool = True, mask: DType | None = None, dtype: DType = bf16, queries: int = 4096
) -> AttentionProblem:
    """64 heads of as many queries and keys."""
    gpu = target.gpu(name)
    return AttentionProblem((64,), queries, queries, head, head, causal, dtype, fp32, gpu, 1, mask)


def candidate(schedule: Schedule, posed: AttentionProblem) -> ModuleOp:
    """The kernel of a schedule, with extents and strides that 16 divides."""
    spec = specs.attention(posed.operand, causal=posed.causal, mask=posed.mask)
    module = lower_attention_gpu(spec, schedule, posed.target)
    return aligned(module, 16, str(schedule))


def compiled(found: StaticFacts | CompileError) -> StaticFacts:
    assert isinstance(found, StaticFacts), found
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_the_usual_heads_use_the_matrix_units_and_do_not_spill(name: str) -> None:
    posed = [problem(name, head) for head in (64, 128)]
    schedules = [gpu_attention_space.default_schedule(each) for each in posed]
    candidates = [candidate(*pair) for pair in zip(schedules, posed, strict=True)]
    for each, found in zip(posed, static_facts(candidates, target.gpu(name)), strict=True):
        facts = compiled(found)
        assert facts.instructions[MULTIPLIES[name]] > 0
        assert facts.spill_bytes == 0
        assert facts.occupancy(each.target).blocks >= 1


def test_what_the_rules_permit_does_not_spill_and_fits() -> None:
    random = Random(5)
    pairs = []
    for mask in (None, bool_):
        posed = problem("sm90", 64, causal=False, mask=mask)
        space = gpu_attention_space.space(posed)
        pairs += [(space.draw(random), posed) for _ in range(2)]
    candidates = [candidate(*pair) for pair in pairs]
    for (schedule, posed), found in zip(pairs, static_facts(candidates, target.gpu("sm90")), strict=True):
        facts = compiled(found)
        assert facts.spill_bytes == 0, schedule
        assert facts.occupancy(posed.target).blocks >= 1, schedule
        assert facts.shared_bytes <= shared_bytes(schedule, posed) * 1.05 + 1024, schedule


def test_known_good_starts_on_hopper() -> None:
    for head in (64, 128):
        schedule = gpu_attention_space.default_schedule(problem("sm90", head))
        assert (schedule["tile"], schedule["warps"], schedule["pipeline_depth"]) == ((128, 128), 8, 3)
        assert (schedule["head"], schedule["exact"]) == ((head, head), True)
    assert gpu_attention_space.default_schedule(problem("sm90", 80))["exact"] is False


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [bf16, fp32])
def test_every_head_size_has_a_legal_default(name: str, dtype: DType) -> None:
    for head in (1, 16, 32, 48, 64, 96, 128, 192, 256):
        for mask in (None, bool_, dtype):
            for queries in (1, 7, 333, 8192):
                posed = problem(name, head, mask=mask, dtype=dtype, queries=queries)
                schedule = gpu_attention_space.default_schedule(posed)
                assert gpu_attention_space.space(posed).violations(schedule) == (), (head, mask, queries)


def test_rules_name_what_is_wrong() -> None:
    posed = problem("sm90", 128)
    space = gpu_attention_space.space(posed)
    start = space.default
    assert space.violations(start.replace(pipeline_depth=4)) == ("shared-memory",)
    assert space.violations(start.replace(tile=(128, 64), warps=4)) == ("values-in-registers",)
    assert space.violations(start.replace(tile=(64, 64))) == ("rows-per-warp",)
    assert space.violations(start.replace(head=(64, 128))) == ("heads-fit",)
    assert "matrix-unit-shape" in space.violations(start.replace(tile=(128, 24)))
    assert "threads-per-block" in space.violations(start.replace(warps=64))
    assert gpu_attention_space.space(problem("sm90", 128, queries=20)).violations(start) == ("tile-within-problem",)


@pytest.mark.parametrize("name", ["sm89", "sm90", "sm100", "sm120"])
def test_bytes_are_multiplied_as_bytes_twice_where_a_gpu_rounds_to_them(name: str) -> None:
    """An RTX 4090 rounds twice on the way to fp8_e4m3: there weights and values meet in bf16, as those of fp8_e5m2 do
    everywhere.
    """
    posed = [problem(name, head, causal=False, dtype=fp8_e4m3) for head in (64, 128)]
    candidates = [candidate(gpu_attention_space.default_schedule(each), each) for each in posed]
    gpu, unit = target.gpu(name), MULTIPLIES.get(name, "mma.sync")
    for found in static_facts(candidates, gpu):
        facts = compiled(found)
        assert facts.spill_bytes == 0
        assert (facts.instructions["fp8 products"] == facts.instructions[unit]) is rounds_float8(gpu)
    assert [weights_dtype(dtype, gpu).itemsize for dtype in (fp8_e4m3, fp8_e5m2)] == [2 - rounds_float8(gpu), 2]
