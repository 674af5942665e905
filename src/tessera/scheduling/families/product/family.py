"""Matrix products, as a family of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.scheduling.families.family import Family, GpuKernels, GpuModel, dtype_of_sums, pays
from tessera.scheduling.families.product import binding, space
from tessera.scheduling.families.product.cost import contraction_work
from tessera.scheduling.families.product.decompositions.apart import APART
from tessera.scheduling.families.product.decompositions.shared_packing import SHARED_PACKING
from tessera.scheduling.families.product.decompositions.split_k import SPLIT_K
from tessera.scheduling.families.product.forms import constant_panels
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.choice import best_starts, chosen_start
from tessera.scheduling.families.product.gpu.estimate import estimate_product
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.product.gpu.problem import GpuContractionProblem, contraction_gpu_problem
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.parts import REGISTER_BLOCK
from tessera.scheduling.families.product.posing import product_poser
from tessera.scheduling.families.product.problem import product_shape
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import ContractionSpec


def _order(schedule: Schedule, problem: space.ContractionProblem) -> tuple[KnobValue, ...]:
    depth = REGISTER_BLOCK if schedule["sums"] == "registers" else schedule.integers("tile")[2]
    if schedule.get("unit") == MATRIX:  # whose sums go on from block to block as if there were one
        return schedule["fusion"], MATRIX
    return schedule["fusion"], schedule["order"] == "dots", depth if depth < problem.k else 0


def _promises(spec: ContractionSpec, schedule: Schedule, extents: Mapping[str, int]) -> str | None:
    deep = schedule.integers("tile")[2]
    if not spec.one_block or deep >= extents["k"]:
        return None
    return f"one_block = true: the {deep} of a tile along k do not hold k = {extents['k']}"


def _under_math(spec: ContractionSpec, tf32: bool, rewrites: bool) -> ContractionSpec:
    return replace(spec, math=("tf32" if tf32 else spec.math) if rewrites else None)


FAMILY = Family(
    name="contraction",
    kernels="matrix products",
    spec=ContractionSpec,
    problem=space.ContractionProblem,
    lower=lambda spec, schedule, target: lower_contraction(
        spec, schedule, target.multiplies_bf16_pairs, target.has_avx512vnni
    ),
    space=space.space,
    rules=space.RULES,
    start=space.default_schedule,
    pose=product_poser,
    work=contraction_work,
    sum_order=_order,
    is_shared=lambda p: pays(p.target, flops=2 * p.m * p.n * p.k * p.batch * p.products),
    accumulation=dtype_of_sums,
    shape=lambda problem, extents: product_shape(problem.batch, problem.m, problem.n, problem.k),
    promises=_promises,
    under_math=_under_math,
    math=lambda spec: "tf32" if spec.math == "tf32" else "ieee",
    regions=("contraction",),
    lay_out=binding.lay_out,
    read=binding.contraction_spec,
    packed=constant_panels,
    in_blocks=lambda schedule, problem: schedule.integers("tile")[2] < problem.k,
    is_anchored=True,
    decompositions=(*APART, SPLIT_K, SHARED_PACKING),
    gpu=GpuKernels(
        name="gpu-contraction",
        pose=lambda spec, target: (
            lambda extents, workers, layouts=None: contraction_gpu_problem(spec, extents, target, layouts)
        ),
        space=gpu_space.space,
        rules=gpu_space.RULES,
        start=gpu_space.default_schedule,
        lower=lambda spec, schedule, target: lower_contraction_gpu(spec, schedule),
        accumulation=dtype_of_sums,
        shape=lambda problem, extents: product_shape(problem.batch, problem.m, problem.n, problem.k),
        searched=gpu_space.searched,
        reads_layouts=True,
        model=GpuModel(
            problem=GpuContractionProblem,
            estimate=estimate_product,
            best=lambda problem, count, rates: best_starts(problem, count, rates=rates),
            chosen=chosen_start,
        ),
    ),
)
