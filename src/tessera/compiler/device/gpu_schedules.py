"""Schedules and Tile IR of a kernel on a GPU: what the lowerings and spaces of `scheduling` offer, for any family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ModuleOp

from tessera.compiler.bind.arrays import Call
from tessera.errors import UnsupportedTargetError
from tessera.scheduling.families.attention.gpu import space as gpu_attention_space
from tessera.scheduling.families.attention.gpu.lowering import lower_attention_gpu
from tessera.scheduling.families.attention.space import attention_problem
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.product.gpu.problem import VECTOR_BYTES, contraction_gpu_problem
from tessera.scheduling.families.rows.gpu import space as gpu_rows_space
from tessera.scheduling.families.rows.gpu.chunks import CHUNK, lower_partial_gpu
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu
from tessera.scheduling.families.rows.gpu.problem import map_reduce_gpu_problem
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import (
    AttentionSpec,
    ContractionSpec,
    ConvolutionSpec,
    MapReduceSpec,
    PackingSpec,
    Spec,
    WindowSpec,
)
from tessera.target import Target

FUSION = "fusion"
"""The knob that every kernel has: False launches its operators one by one."""


Layouts: TypeAlias = Mapping[int, tuple[int, int]]
"""For arguments of a kernel: the bytes, at most 16, that divide address and strides, and those that divide the extent
along stride 1 as well.
"""


GpuSpec: TypeAlias = ContractionSpec | AttentionSpec | MapReduceSpec
"""Of the families that have kernels on GPUs."""


def on_gpus(spec: Spec) -> GpuSpec:
    """The specification, of a family that GPUs have. Raises UnsupportedTargetError (E_UNSUPPORTED_TARGET)."""
    if isinstance(spec, ConvolutionSpec | WindowSpec | PackingSpec):
        raise UnsupportedTargetError(
            f"{spec.name}: {_WITHOUT_KERNEL[type(spec)]} have no kernel for GPUs yet",
            hints=["compute them on the CPU: x.to('cpu')"],
        )
    return spec


_WITHOUT_KERNEL: Mapping[type[Spec], str] = {
    ConvolutionSpec: "convolutions",
    PackingSpec: "operands packed for all workers",
    WindowSpec: "reductions over windows",
}
"""What users call the families of CPUs alone."""


def gpu_schedule(
    spec: Spec, extents: Mapping[str, int], target: Target, pins: Schedule, layouts: Layouts | None = None
) -> Schedule:
    """The schedule of a kernel that nobody has tuned, around the knobs that the user pinned. `layouts` says how the
    operands of a product lie; without it they are packed.

    Raises ScheduleError (E_SCHEDULE_ILLEGAL) and TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) for pins that no legal
    schedule has.
    """
    wanted = Schedule({knob: value for knob, value in pins.items() if knob != FUSION})
    spec = on_gpus(spec)
    if isinstance(spec, ContractionSpec):
        problem = contraction_gpu_problem(spec, extents, target, layouts)
        chosen = gpu_space.space(problem).pinned(wanted).default if wanted else gpu_space.default_schedule(problem)
    elif isinstance(spec, AttentionSpec):
        attended = attention_problem(spec, target, extents)
        space = gpu_attention_space
        chosen = space.space(attended).pinned(wanted).default if wanted else space.default_schedule(attended)
    else:
        rows = map_reduce_gpu_problem(spec, extents, target)
        chosen = gpu_rows_space.space(rows).pinned(wanted).default if wanted else gpu_rows_space.default_schedule(rows)
    return chosen.replace(fusion=False) if pins.get(FUSION) is False else chosen


def gpu_knobs(spec: Spec, call: Call, target: Target) -> Space[Any]:
    """All schedules of a kernel on a GPU, for a call of it."""
    extents, spec = call.shaped.extents, on_gpus(spec)
    if isinstance(spec, ContractionSpec):
        return gpu_space.space(contraction_gpu_problem(spec, extents, target, layouts_of(spec, call)))
    if isinstance(spec, AttentionSpec):
        return gpu_attention_space.space(attention_problem(spec, target, extents))
    return gpu_rows_space.space(map_reduce_gpu_problem(spec, extents, target))


def layouts_of(spec: ContractionSpec, call: Call, unaligned: frozenset[int] = frozenset()) -> Layouts:
    """How the arguments of a product lie in a call; the addresses of slots in `unaligned` may be anything."""
    found: dict[int, tuple[int, int]] = {}
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


def gpu_tile_ir(spec: Spec, schedule: Schedule) -> ModuleOp:
    """The Tile IR of a kernel on a GPU under a schedule."""
    spec = on_gpus(spec)
    if isinstance(spec, ContractionSpec):
        return lower_contraction_gpu(spec, schedule)
    if isinstance(spec, AttentionSpec):
        return lower_attention_gpu(spec, schedule)
    if CHUNK in schedule:
        return lower_partial_gpu(spec, schedule)
    return lower_map_reduce_gpu(spec, schedule)
