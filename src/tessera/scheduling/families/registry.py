"""Kernel families of CPUs: for each kind of problem its space of schedules, its cost and its lowering.

What compiles, tunes and judges kernels looks a family up by the class of its specification or of its problem; a new
family is one entry here, and one in each table of `compiler` that makes specifications and problems of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.families.attention import space as attention_space
from tessera.scheduling.families.attention.cost import attention_work
from tessera.scheduling.families.attention.lowering import lower_attention
from tessera.scheduling.families.attention.space import AttentionProblem
from tessera.scheduling.families.convolution import space as convolution_space
from tessera.scheduling.families.convolution.cost import convolution_work
from tessera.scheduling.families.convolution.lowering import lower_convolution
from tessera.scheduling.families.convolution.problem import ConvolutionProblem
from tessera.scheduling.families.packing import lowering as packing
from tessera.scheduling.families.packing.lowering import PackingProblem
from tessera.scheduling.families.product import space as contraction_space
from tessera.scheduling.families.product.cost import contraction_work
from tessera.scheduling.families.product.lowering import lower_contraction
from tessera.scheduling.families.product.parts import REGISTER_BLOCK
from tessera.scheduling.families.product.problem import MATRIX
from tessera.scheduling.families.product.space import ContractionProblem
from tessera.scheduling.families.rows import space as mapreduce_space
from tessera.scheduling.families.rows.cost import map_reduce_work
from tessera.scheduling.families.rows.lowering import lower_map_reduce
from tessera.scheduling.families.rows.space import MapReduceProblem
from tessera.scheduling.families.window import space as window_space
from tessera.scheduling.families.window.cost import window_work
from tessera.scheduling.families.window.lowering import lower_window
from tessera.scheduling.families.window.space import WindowProblem
from tessera.scheduling.language.columns import Knobs
from tessera.scheduling.language.knobs import Rule, Space
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import (
    AttentionSpec,
    ContractionSpec,
    ConvolutionSpec,
    MapReduceSpec,
    PackingSpec,
    WindowSpec,
)
from tessera.scheduling.model.estimate import LEVELS
from tessera.scheduling.model.machine import Machine, Work
from tessera.target import Target

PARALLEL_FLOPS = 2_000_000
"""Work below which starting a second worker (1.1 us on this project's machines) costs more than it saves."""
PARALLEL_BYTES = 1 << 18


class Problem(Protocol):
    """What every family's problem tells: the extents that a choice of schedule depends on, and the workers."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""

    @property
    def workers(self) -> int:
        """The workers that share the kernel's work."""


@dataclass(frozen=True)
class Family:
    """One family of kernels on CPUs, by its name.

    `lower` gives the Tile IR of a specification under a schedule, `space`, `rules` and `start` are the schedules of a
    problem and the proven one of them, `work` is what one makes a worker do, and `sum_order` what of one decides the
    bits of a result. `is_shared` says whether a problem is worth a second worker, `accumulation` names the dtype of
    its sums.
    """

    name: str
    spec: type[Any]
    problem: type[Any]
    lower: Callable[[Any, Schedule, Target], ModuleOp]
    space: Callable[[Any], Space[Any]]
    rules: tuple[Rule[Any], ...]
    start: Callable[[Any], Schedule]
    work: Callable[[Any, Knobs, Machine], Work]
    sum_order: Callable[[Schedule, Any], tuple[KnobValue, ...]]
    is_shared: Callable[[Any], bool]
    accumulation: Callable[[Any], str]
    counted: tuple[str, ...] = LEVELS
    """The memory levels of which `work` has all traffic; of others it has what can hold a kernel up."""


def _product_order(schedule: Schedule, problem: ContractionProblem) -> tuple[KnobValue, ...]:
    depth = REGISTER_BLOCK if schedule["sums"] == "registers" else schedule.integers("tile")[2]
    if schedule.get("unit") == MATRIX:  # whose sums go on from block to block as if there were one
        return schedule["fusion"], MATRIX
    return schedule["fusion"], schedule["order"] == "dots", depth if depth < problem.k else 0


def _reduction_order(schedule: Schedule, problem: MapReduceProblem) -> tuple[KnobValue, ...]:
    return schedule["fusion"], schedule.integers("tile")[1] if problem.by_rows else 0


def _attention_order(schedule: Schedule, problem: AttentionProblem) -> tuple[KnobValue, ...]:
    blocks = schedule.integers("tile")[1], schedule.integers("micro")[0]
    unit = (MATRIX,) if schedule.get("unit") == MATRIX else ()
    return schedule["fusion"], schedule["lanes"], schedule["parts"], *blocks, *unit


def _pixel_order(schedule: Schedule, problem: ConvolutionProblem) -> tuple[KnobValue, ...]:
    if schedule.get("unit") == MATRIX:  # which adds up what it multiplies at once before it adds it to a sum
        return schedule["fusion"], MATRIX, schedule["merge"]
    return _tap_order(schedule, problem)


def _tap_order(schedule: Schedule, problem: ConvolutionProblem | WindowProblem) -> tuple[KnobValue, ...]:
    return (schedule["fusion"],)  # taps, and the channels of each, are always walked in one order


def _dtype_of_sums(problem: ContractionProblem | AttentionProblem | ConvolutionProblem) -> str:
    return problem.accumulator.name


FAMILIES: tuple[Family, ...] = (
    Family(
        name="contraction",
        spec=ContractionSpec,
        problem=ContractionProblem,
        lower=lambda spec, schedule, target: lower_contraction(
            spec, schedule, target.has_avx512bf16, target.has_avx512vnni
        ),
        space=contraction_space.space,
        rules=contraction_space.RULES,
        start=contraction_space.default_schedule,
        work=contraction_work,
        sum_order=_product_order,
        is_shared=lambda p: 2 * p.m * p.n * p.k * p.batch * p.products >= PARALLEL_FLOPS,
        accumulation=_dtype_of_sums,
    ),
    Family(
        name="attention",
        spec=AttentionSpec,
        problem=AttentionProblem,
        lower=lambda spec, schedule, target: lower_attention(
            spec, schedule, target.vector_bits // 8, target.has_avx512bf16
        ),
        space=attention_space.space,
        rules=attention_space.RULES,
        start=attention_space.default_schedule,
        work=attention_work,
        sum_order=_attention_order,
        is_shared=lambda p: 2 * p.visible * (p.head + p.value_head) >= PARALLEL_FLOPS,
        accumulation=_dtype_of_sums,
        counted=("L3", "DRAM"),  # scores and packed blocks, in the nearer caches, are cycles
    ),
    Family(
        name="convolution",
        spec=ConvolutionSpec,
        problem=ConvolutionProblem,
        lower=lambda spec, schedule, target: lower_convolution(spec, schedule),
        space=convolution_space.space,
        rules=convolution_space.RULES,
        start=convolution_space.default_schedule,
        work=convolution_work,
        sum_order=_pixel_order,
        is_shared=lambda p: 2 * p.products >= PARALLEL_FLOPS,
        accumulation=_dtype_of_sums,
        counted=("L3", "DRAM"),  # of the nearer caches the pixels are not
    ),
    Family(
        name="map-reduce",
        spec=MapReduceSpec,
        problem=MapReduceProblem,
        lower=lambda spec, schedule, target: lower_map_reduce(spec, schedule, target.vector_bits // 32),
        space=mapreduce_space.space,
        rules=mapreduce_space.RULES,
        start=mapreduce_space.default_schedule,
        work=map_reduce_work,
        sum_order=_reduction_order,
        is_shared=lambda p: p.bytes_in + p.bytes_out >= PARALLEL_BYTES,
        accumulation=lambda p: "fp32",
    ),
    Family(
        name="packing",
        spec=PackingSpec,
        problem=PackingProblem,
        lower=lambda spec, schedule, target: packing.lower_packing(spec, schedule),
        space=packing.space,
        rules=packing.RULES,
        start=packing.default_schedule,
        work=packing.packing_work,
        sum_order=lambda schedule, problem: (),
        is_shared=lambda p: 2 * p.n * p.k * p.batch * p.dtype.itemsize >= PARALLEL_BYTES,
        accumulation=lambda p: p.dtype.name,
    ),
    Family(
        name="window",
        spec=WindowSpec,
        problem=WindowProblem,
        lower=lambda spec, schedule, target: lower_window(spec, schedule, target.vector_bits // 32),
        space=window_space.space,
        rules=window_space.RULES,
        start=window_space.default_schedule,
        work=window_work,
        sum_order=_tap_order,
        is_shared=lambda p: p.bytes_in + p.bytes_out >= PARALLEL_BYTES,
        accumulation=lambda p: "fp32",
        counted=("L2", "L3", "DRAM"),  # what neighbouring windows load again from L1 is cycles
    ),
)
"""All families."""

_BY_CLASS: Mapping[type[Any], Family] = {each: family for family in FAMILIES for each in (family.spec, family.problem)}


def kernel_family(value: object) -> Family:
    """The family of a specification or of a problem. KeyError for one that has none on CPUs."""
    return _BY_CLASS[type(value)]
