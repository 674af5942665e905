"""Convolutions, as a family of kernels."""

from __future__ import annotations

from functools import partial

from tessera.scheduling.families.convolution import binding, space
from tessera.scheduling.families.convolution.cost import convolution_work
from tessera.scheduling.families.convolution.lowering import lower_convolution
from tessera.scheduling.families.convolution.problem import ConvolutionProblem, convolution_problem
from tessera.scheduling.families.convolution.weights import PACKED_WEIGHTS, constant_weights
from tessera.scheduling.families.family import Family, dtype_of_sums, pays
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import ConvolutionSpec


def _order(schedule: Schedule, problem: ConvolutionProblem) -> tuple[KnobValue, ...]:
    if schedule.get("unit") == MATRIX:  # which adds up what it multiplies at once before it adds it to a sum
        return schedule["fusion"], MATRIX, schedule["merge"]
    return (schedule["fusion"],)  # taps, and the channels of each, are always walked in one order


FAMILY = Family(
    name="convolution",
    kernels="convolutions",
    spec=ConvolutionSpec,
    problem=ConvolutionProblem,
    lower=lambda spec, schedule, target: lower_convolution(spec, schedule),
    space=space.space,
    rules=space.RULES,
    start=space.default_schedule,
    pose=lambda spec, target: partial(convolution_problem, spec, target),
    work=convolution_work,
    sum_order=_order,
    is_shared=lambda p: pays(p.target, flops=2 * p.products),
    accumulation=dtype_of_sums,
    regions=("convolution",),
    lay_out=binding.lay_out,
    read=binding.convolution_spec,
    packed=constant_weights,
    takes_any_order=True,
    is_anchored=True,
    decompositions=(PACKED_WEIGHTS,),
    identity=lambda spec: f" {spec.window}" + " padded after" * spec.window.only_after,
    counted=("L3", "DRAM"),  # of the nearer caches the pixels are not
)
