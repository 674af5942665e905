"""What maps and reductions become on GPUs: sampled schedules compile without spills, and load 16 bytes at a time."""

from __future__ import annotations

from random import Random

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.rows.gpu import space as gpu_rows_space
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu
from tessera.scheduling.families.rows.gpu.problem import map_reduce_gpu_problem, predicted_resources
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import MapReduceSpec
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

TARGETS = ("sm80", "sm90", "sm100", "gfx942")
WIDE = {"sm80": "ld.global.v4", "sm90": "ld.global.v4", "sm100": "ld.global.v4", "gfx942": "load 16 bytes"}
EXTENTS = {"o0": 4096, "c": 4096, "r": 4096}
FAMILIES: tuple[MapReduceSpec, ...] = (
    specs.rows("softmax", bf16),
    specs.rows("layer_norm", fp32, 2, eps=1e-5),
    specs.rows("gelu", bf16),
    specs.add_scaled(bf16),
    specs.reduction("sum", fp32, by_rows=False),
    specs.reduction("mean", bf16, by_rows=True),
)


def candidate(spec: MapReduceSpec, schedule: Schedule) -> ModuleOp:
    """A kernel of which 16 divides all extents and strides."""
    module = lower_map_reduce_gpu(spec, schedule)
    return aligned(module, 16, str(schedule))


def compiled(found: object) -> StaticFacts:
    assert isinstance(found, StaticFacts), found
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_default_schedules_load_16_bytes_at_a_time(name: str) -> None:
    gpu = target.gpu(name)
    problems = [map_reduce_gpu_problem(spec, EXTENTS, gpu) for spec in FAMILIES]
    schedules = [gpu_rows_space.default_schedule(problem) for problem in problems]
    found = static_facts([candidate(*each) for each in zip(FAMILIES, schedules, strict=True)], gpu)
    for spec, problem, schedule, each in zip(FAMILIES, problems, schedules, found, strict=True):
        facts = compiled(each)
        assert facts.instructions.get(WIDE[name], 0) > 0, (spec.name, schedule)
        assert facts.spill_bytes == 0, (spec.name, schedule)
        predicted = predicted_resources(problem, schedule).registers
        # Predictions are made for NVIDIA's compiler; AMD's takes what is there.
        assert name == "gfx942" or facts.registers <= 1.5 * predicted + 8, (spec.name, schedule)


@pytest.mark.parametrize("name", TARGETS)
def test_sampled_schedules_compile_and_fit(name: str) -> None:
    gpu, random = target.gpu(name), Random(11)
    drawn: list[tuple[MapReduceSpec, Schedule]] = []
    for spec in FAMILIES:
        space = gpu_rows_space.space(map_reduce_gpu_problem(spec, EXTENTS, gpu))
        drawn.append((spec, space.draw(random, 5000)))
    for (spec, schedule), each in zip(drawn, static_facts([candidate(*one) for one in drawn], gpu), strict=True):
        facts = compiled(each)
        assert facts.occupancy(gpu).blocks >= 1, (spec.name, schedule)
        assert facts.spill_bytes == 0, (spec.name, schedule)
