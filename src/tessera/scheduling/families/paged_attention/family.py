"""Attention to pages, as a family of kernels."""

from __future__ import annotations

from functools import partial

from tessera.scheduling.families.attention import family as attention
from tessera.scheduling.families.attention.cost import attention_work
from tessera.scheduling.families.attention.parts import PARTS_OF_KEYS
from tessera.scheduling.families.attention.space import HEADS, RULES
from tessera.scheduling.families.family import Family, GpuKernels, dtype_of_sums
from tessera.scheduling.families.paged_attention import binding, space
from tessera.scheduling.families.paged_attention.gpu import space as gpu_space
from tessera.scheduling.families.paged_attention.gpu.lowering import lower_paged_attention_gpu
from tessera.scheduling.families.paged_attention.nest import lower_paged_attention
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec

FAMILY = Family(
    name="paged-attention",
    kernels="attention to pages",
    spec=PagedAttentionSpec,
    problem=space.PagedAttentionProblem,
    lower=lambda spec, schedule, target: lower_paged_attention(spec, schedule, target.vector_bits // 8),
    space=space.space,
    rules=RULES,
    start=space.default_schedule,
    pose=lambda spec, target: partial(space.paged_problem, spec, target),
    work=attention_work,
    sum_order=attention.FAMILY.sum_order,
    is_shared=attention.FAMILY.is_shared,
    accumulation=dtype_of_sums,
    counted=attention.FAMILY.counted,
    identity=lambda spec: f"{' causal' if spec.causal else ''}{' window' if spec.window else ''}",
    regions=("paged_attention",),
    lay_out=binding.lay_out,
    read=binding.paged_spec,
    is_anchored=True,
    decompositions=(PARTS_OF_KEYS,),
    gpu=GpuKernels(
        name="gpu-paged-attention",
        pose=lambda spec, target: lambda extents, workers: space.paged_problem(spec, target, extents),
        space=gpu_space.space,
        rules=gpu_space.RULES,
        start=gpu_space.default_schedule,
        lower=lower_paged_attention_gpu,
        model=gpu_space.MODEL.of_family,
        accumulation=dtype_of_sums,
        code_axes=HEADS | {"k"},
    ),
)
