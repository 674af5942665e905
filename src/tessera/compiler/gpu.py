"""The kernels of an operator for a GPU that need not be there: their Tile IR, their schedules, and what they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.triton.kernel import Parameter, parameters_of
from tessera.backend.triton.static import Candidate, StaticFacts, static_facts
from tessera.compiler.kernels import Launch
from tessera.compiler.tuning import launches_of_operator
from tessera.errors import CompileError
from tessera.scheduling import gpu_space
from tessera.scheduling.gpu import (
    contraction_gpu_problem,
    lower_contraction_gpu,
    lower_map_reduce_gpu,
    map_reduce_gpu_schedule,
)
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import AttentionSpec, ContractionSpec
from tessera.target import Target

DIVISOR = 16
"""Triton compiles a kernel of its own for extents and strides that this divides: it makes wide loads possible."""


@dataclass(frozen=True)
class GpuKernel:
    """A kernel of an operator: `name`, `schedule`, Tile IR, and its facts or why it does not compile."""

    name: str
    schedule: Schedule
    module: ModuleOp
    facts: StaticFacts | CompileError


def gpu_kernels(op: object, shapes: object, dtype: object, target: Target) -> list[GpuKernel]:
    """The kernels that `op` applied to operands of these shapes takes on `target`, compiled without running any.

    `shapes` and `dtype` are those of `autotune`. Raises what the operator raises for them, and UnsupportedTargetError
    where Triton is not installed.
    """
    launches = launches_of_operator(op, shapes, dtype)
    lowered = [lower(launch, target) for launch in launches]
    candidates = [
        Candidate(module, divisible(launch, module), f"schedule: {schedule}")
        for launch, (schedule, module) in zip(launches, lowered, strict=True)
    ]
    return [
        GpuKernel(launch.call.item.name, schedule, module, facts)
        for launch, (schedule, module), facts in zip(launches, lowered, static_facts(candidates, target), strict=True)
    ]


def lower(launch: Launch, target: Target) -> tuple[Schedule, ModuleOp]:
    """The schedule and the Tile IR, for a GPU, of a kernel that a program launches."""
    spec, extents = launch.kernel.subject.spec, launch.call.shaped.extents
    if isinstance(spec, ContractionSpec):
        schedule = gpu_space.default_schedule(contraction_gpu_problem(spec, extents, target))
        return schedule, lower_contraction_gpu(spec, schedule)
    if isinstance(spec, AttentionSpec):
        raise CompileError(f"{launch.call.item.name}: attention is lowered for CPUs only so far")
    schedule = map_reduce_gpu_schedule(spec, extents[spec.lanes])
    return schedule, lower_map_reduce_gpu(spec, schedule)


def divisible(launch: Launch, module: ModuleOp) -> list[str]:
    """The parameters that are multiples of `DIVISOR` in this call."""
    _, parameters, _ = parameters_of(module)
    return [parameter.name for parameter in parameters if _value(launch.call.arguments, parameter) % DIVISOR == 0]


def _value(arguments: Sequence[tuple[object, tuple[int, ...]]], parameter: Parameter) -> int:
    """The extent or stride that a parameter has in a call; 1 for what is neither."""
    _, words = arguments[parameter.argument]
    if parameter.role == "argument":
        return 1
    return words[parameter.dim + (len(words) // 2 if parameter.role == "stride" else 0)]
