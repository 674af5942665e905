"""Schedules and Tile IR of a kernel on a GPU: what the lowerings and spaces of its family offer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tessera.compiler.bind.arrays import Call
from tessera.scheduling.families.family import Layouts
from tessera.scheduling.families.product.gpu.problem import VECTOR_BYTES
from tessera.scheduling.families.registry import gpu_kernels
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Spec
from tessera.target import Target

FUSION = "fusion"
"""The knob that every kernel has: False launches its operators one by one."""


def gpu_schedule(
    spec: Spec, extents: Mapping[str, int], target: Target, pins: Schedule, layouts: Layouts | None = None
) -> Schedule:
    """The schedule of a kernel that nobody has tuned, around the knobs that the user pinned. `layouts` says how the
    operands of a product lie; without it they are packed.

    Raises ScheduleError (E_SCHEDULE_ILLEGAL) and TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) for pins that no legal
    schedule has, and UnsupportedTargetError (E_UNSUPPORTED_TARGET) for families without kernels for GPUs.
    """
    wanted = without_fusion(pins)
    kernels = gpu_kernels(spec)
    problem = kernels.problem(spec, extents, target, layouts)
    chosen = kernels.space(problem).pinned(wanted).default if wanted else kernels.start(problem)
    return chosen.replace(fusion=False) if pins.get(FUSION) is False else chosen


def without_fusion(schedule: Schedule) -> Schedule:
    """A schedule without the knob `fusion`, which spaces of GPUs do not have."""
    return Schedule({knob: value for knob, value in schedule.items() if knob != FUSION})


def gpu_knobs(spec: Spec, call: Call, target: Target) -> Space[Any]:
    """All schedules of a kernel on a GPU, for a call of it."""
    kernels = gpu_kernels(spec)
    return kernels.space(kernels.problem(spec, call.shaped.extents, target, layouts_of(spec, call)))


def layouts_of(spec: Spec, call: Call, unaligned: frozenset[int] = frozenset()) -> Layouts:
    """How the arguments of a kernel lie in a call, where its family's schedules depend on that; the addresses of slots
    in `unaligned` may be anything.
    """
    found: dict[int, tuple[int, int]] = {}
    if not gpu_kernels(spec).reads_layouts:
        return found
    for index, (argument, (view, words)) in enumerate(zip(spec.arguments, call.arguments, strict=True)):
        if view.is_scalar:
            continue
        itemsize = argument.dtype.itemsize
        if 1 not in argument.strides or view.storage.slot in unaligned:
            found[index] = itemsize, itemsize
            continue
        unit, rank = argument.strides.index(1), len(words) // 2
        strides = [stride * itemsize for dim, stride in enumerate(words[rank:]) if dim != unit]
        divided = math.gcd(VECTOR_BYTES, view.offset_bytes, *strides)
        found[index] = divided, math.gcd(divided, words[unit] * itemsize)
    return found
