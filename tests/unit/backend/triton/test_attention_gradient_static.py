"""The gradient of attention for GPUs that are not there: it uses the matrix units, does not spill, and fits."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.dtypes import DType, bf16, fp32
from tessera.scheduling.families.attention_gradient.gpu import space
from tessera.scheduling.families.attention_gradient.gpu.lowering import lower_gradient_gpu
from tessera.scheduling.families.attention_gradient.gpu.rules import GpuGradientProblem, shared_bytes
from tessera.scheduling.language.schedule import Schedule
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

MULTIPLIES = {"sm80": "mma.sync", "sm90": "wgmma", "sm100": "tcgen05.mma"}
WALKS = {"q": ("d",), "kv": ("d", "v")}


def problem(
    name: str, head: int, of: str, dtype: DType = bf16, length: int = 4096, pair_bytes: int = 0
) -> GpuGradientProblem:
    """64 heads of as many queries and keys, causal."""
    sums, scored = WALKS[of], pair_bytes > 1
    extents = 64, 1, length, length, head, head
    return GpuGradientProblem(*extents, True, of != "q", sums, dtype, fp32, scored, pair_bytes, target.gpu(name))


def kernel(schedule: Schedule, posed: GpuGradientProblem, note: str) -> ModuleOp:
    """The kernel of a schedule, with extents and strides that 16 divides."""
    of = "kv" if posed.by_keys else "q"
    return aligned(lower_gradient_gpu(specs.attention_gradient(posed.operand, of, causal=True), schedule), 16, note)


@pytest.mark.parametrize("name", MULTIPLIES)
def test_the_usual_heads_use_the_matrix_units_and_do_not_spill(name: str) -> None:
    posed = [problem(name, head, of) for head in (64, 128) for of in WALKS]
    schedules = [space.default_schedule(each) for each in posed]
    modules = [kernel(*pair, str(place)) for place, pair in enumerate(zip(schedules, posed, strict=True))]
    for each, schedule, facts in zip(posed, schedules, static_facts(modules, target.gpu(name)), strict=True):
        assert isinstance(facts, StaticFacts), facts
        assert facts.instructions[MULTIPLIES[name]] > 0
        assert facts.spill_bytes == 0, schedule
        assert facts.occupancy(each.target).blocks >= 1
        assert facts.shared_bytes <= shared_bytes(schedule, each) * 1.05 + 1024, schedule


@pytest.mark.parametrize("name", [*MULTIPLIES, "gfx942"])
@pytest.mark.parametrize("dtype", [bf16, fp32])
def test_every_head_size_has_a_legal_default(name: str, dtype: DType) -> None:
    for head in (1, 16, 48, 64, 128, 256):
        for pair_bytes in (0, 1, 4):
            for length in (1, 333, 8192):
                for of in WALKS:
                    posed = problem(name, head, of, dtype, length, pair_bytes)
                    schedule = space.default_schedule(posed)
                    assert space.space(posed).violations(schedule) == (), (head, pair_bytes, length, of)


def test_rules_name_what_is_wrong() -> None:
    posed = problem("sm90", 128, "kv")
    legal = space.space(posed)
    start = legal.default.replace(tile=(32, 128), warps=8)
    assert legal.violations(start) == ()
    assert legal.violations(start.replace(tile=(64, 128), pipeline_depth=2)) == ("values-in-registers",)
    assert legal.violations(start.replace(tile=(32, 64))) == ("rows-per-warp",)
    assert legal.violations(start.replace(head=(64, 128))) == ("heads-fit",)
    assert "shared-memory" in legal.violations(start.replace(tile=(256, 128)))
    assert "threads-per-block" in legal.violations(start.replace(warps=64))
    assert "matrix-unit-shape" in legal.violations(start.replace(tile=(24, 128)))
