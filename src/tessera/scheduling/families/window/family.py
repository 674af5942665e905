"""Reductions over windows that slide over images, as a family of kernels."""

from __future__ import annotations

from functools import partial

from tessera.scheduling.families.family import Family, pays
from tessera.scheduling.families.window import binding, space
from tessera.scheduling.families.window.cost import window_work
from tessera.scheduling.families.window.lowering import lower_window
from tessera.scheduling.lowering.spec import WindowSpec

FAMILY = Family(
    name="window",
    kernels="reductions over windows",
    spec=WindowSpec,
    problem=space.WindowProblem,
    lower=lambda spec, schedule, target: lower_window(spec, schedule, target.vector_bits // 32),
    space=space.space,
    rules=space.RULES,
    start=space.default_schedule,
    pose=lambda spec, target: partial(space.window_problem, spec, target),
    work=window_work,
    sum_order=lambda schedule, problem: (schedule["fusion"],),  # taps are always walked in one order
    is_shared=lambda p: pays(p.target, nbytes=p.bytes_in + p.bytes_out),
    accumulation=lambda p: "fp32",
    regions=("window",),
    lay_out=binding.lay_out,
    read=binding.window_spec,
    takes_any_order=True,
    is_anchored=True,
    counted=("L2", "L3", "DRAM"),  # what neighbouring windows load again from L1 is cycles
)
