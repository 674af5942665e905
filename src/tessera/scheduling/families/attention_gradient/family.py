"""The gradient of attention, as a family of kernels."""

from __future__ import annotations

from functools import partial

from tessera.scheduling.families.attention.space import HEADS
from tessera.scheduling.families.attention_gradient import binding, space
from tessera.scheduling.families.attention_gradient.cost import gradient_work
from tessera.scheduling.families.attention_gradient.gpu import space as gpu_space
from tessera.scheduling.families.attention_gradient.gpu.lowering import lower_gradient_gpu
from tessera.scheduling.families.attention_gradient.gpu.rules import RULES, gradient_gpu_problem
from tessera.scheduling.families.attention_gradient.gpu.walks import TWO_WALKS
from tessera.scheduling.families.attention_gradient.nest import lower_gradient
from tessera.scheduling.families.family import Family, GpuKernels, dtype_of_sums, pays
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import AttentionGradientSpec


def _order(schedule: Schedule, problem: space.GradientProblem) -> tuple[KnobValue, ...]:
    return schedule["fusion"], *schedule.integers("tile")


FAMILY = Family(
    name="attention-gradient",
    kernels="gradients of attention",
    spec=AttentionGradientSpec,
    problem=space.GradientProblem,
    lower=lambda spec, schedule, target: lower_gradient(spec, schedule),
    space=space.space,
    rules=space.RULES,
    start=space.default_schedule,
    pose=lambda spec, target: partial(space.gradient_problem, spec, target),
    work=gradient_work,
    sum_order=_order,
    is_shared=lambda p: pays(p.target, flops=p.flops),
    accumulation=dtype_of_sums,
    counted=("L3", "DRAM"),
    identity=lambda spec: " causal" if spec.causal else " scored" if spec.scoring else "",
    regions=("attention_gradient",),
    lay_out=binding.lay_out,
    read=binding.gradient_spec,
    is_anchored=True,
    decompositions=(TWO_WALKS,),
    gpu=GpuKernels(
        name="gpu-attention-gradient",
        pose=lambda spec, target: lambda extents, workers: gradient_gpu_problem(spec, target, extents),
        space=gpu_space.space,
        rules=RULES,
        start=gpu_space.default_schedule,
        lower=lambda spec, schedule, target: lower_gradient_gpu(spec, schedule),
        model=gpu_space.MODEL.of_family,
        accumulation=dtype_of_sums,
        code_axes=HEADS,
    ),
)
