"""Schedules and Tile IR of a kernel on a GPU: what the lowerings and spaces of `scheduling` offer, for any family."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling import gpu_attention_space, gpu_rows_space, gpu_space
from tessera.scheduling.attention_space import attention_problem
from tessera.scheduling.gpu import (
    contraction_gpu_problem,
    lower_contraction_gpu,
    lower_map_reduce_gpu,
)
from tessera.scheduling.gpu_attention import lower_attention_gpu
from tessera.scheduling.gpu_rows_problem import map_reduce_gpu_problem
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import AttentionSpec, ContractionSpec, Spec
from tessera.target import Target

FUSION = "fusion"
"""The knob that every kernel has: False launches its operators one by one."""


def gpu_schedule(spec: Spec, extents: Mapping[str, int], target: Target, pins: Schedule) -> Schedule:
    """The schedule of a kernel that nobody has tuned, around the knobs that the user pinned.

    Raises ScheduleError (E_SCHEDULE_ILLEGAL) and TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) for pins that no legal
    schedule has.
    """
    wanted = Schedule({knob: value for knob, value in pins.items() if knob != FUSION})
    if isinstance(spec, ContractionSpec):
        problem = contraction_gpu_problem(spec, extents, target)
        chosen = gpu_space.space(problem).pinned(wanted).default if wanted else gpu_space.default_schedule(problem)
    elif isinstance(spec, AttentionSpec):
        attended = attention_problem(spec, target, extents)
        space = gpu_attention_space
        chosen = space.space(attended).pinned(wanted).default if wanted else space.default_schedule(attended)
    else:
        rows = map_reduce_gpu_problem(spec, extents, target)
        chosen = gpu_rows_space.space(rows).pinned(wanted).default if wanted else gpu_rows_space.default_schedule(rows)
    return chosen.replace(fusion=False) if pins.get(FUSION) is False else chosen


def checked_schedule(spec: Spec, extents: Mapping[str, int], target: Target, pins: Schedule) -> Schedule:
    """The default schedule with the pinned knobs changed, and no others.

    Raises ScheduleError (E_SCHEDULE_ILLEGAL), whose hints are the rules that it breaks.
    """
    if not isinstance(spec, ContractionSpec):
        return gpu_schedule(spec, extents, target, pins)
    space = gpu_space.space(contraction_gpu_problem(spec, extents, target))
    return space.check(space.default.replace(**pins))


def gpu_tile_ir(spec: Spec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a kernel on a GPU under a schedule."""
    if isinstance(spec, ContractionSpec):
        return lower_contraction_gpu(spec, schedule)
    if isinstance(spec, AttentionSpec):
        return lower_attention_gpu(spec, schedule)
    return lower_map_reduce_gpu(spec, schedule)
