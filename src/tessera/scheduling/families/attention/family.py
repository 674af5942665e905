"""Attention, as a family of kernels."""

from __future__ import annotations

from functools import partial

from tessera.scheduling.families.attention import binding, space
from tessera.scheduling.families.attention.cost import attention_work
from tessera.scheduling.families.attention.gpu import space as gpu_space
from tessera.scheduling.families.attention.gpu.lowering import lower_attention_gpu
from tessera.scheduling.families.attention.gpu.rules import RULES as GPU_RULES
from tessera.scheduling.families.attention.lowering import lower_attention
from tessera.scheduling.families.attention.parts import PARTS_OF_KEYS
from tessera.scheduling.families.family import Family, GpuKernels, dtype_of_sums, pays
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import AttentionSpec


def _order(schedule: Schedule, problem: space.AttentionProblem) -> tuple[KnobValue, ...]:
    blocks = schedule.integers("tile")[1], schedule.integers("micro")[0]
    unit = (MATRIX,) if schedule.get("unit") == MATRIX else ()
    return schedule["fusion"], schedule["lanes"], schedule["parts"], *blocks, *unit


FAMILY = Family(
    name="attention",
    kernels="attention",
    spec=AttentionSpec,
    problem=space.AttentionProblem,
    lower=lambda spec, schedule, target: lower_attention(
        spec, schedule, target.vector_bits // 8, target.multiplies_bf16_pairs
    ),
    space=space.space,
    rules=space.RULES,
    start=space.default_schedule,
    pose=lambda spec, target: partial(space.attention_problem, spec, target),
    work=attention_work,
    sum_order=_order,
    is_shared=lambda p: pays(p.target, flops=2 * p.visible * (p.head + p.value_head)),
    accumulation=dtype_of_sums,
    counted=("L3", "DRAM"),  # scores and packed blocks, in the nearer caches, are cycles
    identity=lambda spec: " causal" if spec.causal else " scored" if spec.scoring else "",
    regions=("attention",),
    lay_out=binding.lay_out,
    read=binding.attention_spec,
    between=lambda domain: domain[-5] * domain[-3],  # scores, of queries and keys
    is_anchored=True,
    decompositions=(PARTS_OF_KEYS,),
    gpu=GpuKernels(
        name="gpu-attention",
        pose=lambda spec, target: lambda extents, workers: space.attention_problem(spec, target, extents),
        space=gpu_space.space,
        rules=GPU_RULES,
        start=gpu_space.default_schedule,
        lower=lower_attention_gpu,
        model=gpu_space.MODEL.of_family,
        accumulation=dtype_of_sums,
        code_axes=space.HEADS,
    ),
)
