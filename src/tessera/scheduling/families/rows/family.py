"""Maps and reductions, as a family of kernels."""

from __future__ import annotations

from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.families.family import Family, GpuKernels, GpuModel, pays
from tessera.scheduling.families.rows import binding, space
from tessera.scheduling.families.rows.copies import NOT_MERGED, ON_COPIES
from tessera.scheduling.families.rows.cost import map_reduce_work
from tessera.scheduling.families.rows.gpu import space as gpu_space
from tessera.scheduling.families.rows.gpu.chunks import CHUNK, CHUNKS, lower_partial_gpu
from tessera.scheduling.families.rows.gpu.estimate import estimate_rows
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu
from tessera.scheduling.families.rows.gpu.problem import GpuRowsProblem, map_reduce_gpu_problem
from tessera.scheduling.families.rows.in_place import reads_before
from tessera.scheduling.families.rows.lowering import lower_map_reduce
from tessera.scheduling.families.rows.posing import rows_poser
from tessera.scheduling.families.rows.stages import STAGES
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import MapReduceSpec
from tessera.target import Target

_Problem: TypeAlias = space.MapReduceProblem


def _order(schedule: Schedule, problem: _Problem) -> tuple[KnobValue, ...]:
    return schedule["fusion"], schedule.integers("tile")[1] if problem.by_rows else 0


def _lower_gpu(spec: MapReduceSpec, schedule: Schedule, target: Target) -> ModuleOp:
    lower = lower_partial_gpu if CHUNK in schedule else lower_map_reduce_gpu
    return lower(spec, schedule)


FAMILY = Family(
    name="map-reduce",
    kernels="maps and reductions",
    spec=MapReduceSpec,
    problem=_Problem,
    lower=lambda spec, schedule, target: lower_map_reduce(spec, schedule, target.vector_bits // 32),
    space=space.space,
    rules=space.RULES,
    start=space.default_schedule,
    pose=rows_poser,
    work=map_reduce_work,
    sum_order=_order,
    is_shared=lambda p: pays(p.target, nbytes=p.bytes_in + p.bytes_out),
    accumulation=lambda p: "fp32",
    regions=("row", "column"),
    lay_out=binding.lay_out,
    read=binding.map_reduce_spec,
    reads_before=reads_before,
    decompositions=(NOT_MERGED, ON_COPIES, STAGES, CHUNKS),
    gpu=GpuKernels(
        name="gpu-rows",
        pose=lambda spec, target: lambda extents, workers: map_reduce_gpu_problem(spec, extents, target),
        space=gpu_space.space,
        rules=gpu_space.RULES,
        start=gpu_space.default_schedule,
        lower=_lower_gpu,
        accumulation=lambda problem: "fp32",
        step_knobs=frozenset({CHUNK}),
        model=GpuModel(
            problem=GpuRowsProblem,
            estimate=estimate_rows,
            best=gpu_space.best_starts,
            chosen=gpu_space.chosen_start,
        ),
    ),
)
