"""The kernels of an operator for a GPU that need not be there: their Tile IR, their schedules, and what they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.triton.static import StaticFacts, static_facts
from tessera.compiler.gpu_kernels import GpuKernelCompiler
from tessera.compiler.gpu_launches import Site
from tessera.compiler.gpu_schedules import checked_schedule
from tessera.compiler.launches import Launch
from tessera.compiler.tuning import launches_of_operator
from tessera.errors import CompileError
from tessera.scheduling.schedule import Schedule
from tessera.target import Target


@dataclass(frozen=True)
class GpuKernel:
    """A kernel of an operator: `name`, `schedule`, Tile IR, and its facts or why it does not compile."""

    name: str
    schedule: Schedule
    module: ModuleOp
    facts: StaticFacts | CompileError


def gpu_kernels(
    op: object, shapes: object, dtype: object, target: Target, pins: Schedule | None = None
) -> list[GpuKernel]:
    """The kernels that `op` applied to operands of these shapes takes on `target`, compiled without running any.

    `shapes` and `dtype` are those of `autotune`; `pins` are knobs that differ from the default schedules. Raises what
    the operator raises for them, ScheduleError for pins that break a rule, and UnsupportedTargetError where Triton is
    not installed.
    """
    sites = gpu_sites(op, shapes, dtype, target, pins)
    found = static_facts([site.candidate for site in sites], target)
    return [
        GpuKernel(site.name, site.launch.schedule, site.lowered.module, facts)
        for site, facts in zip(sites, found, strict=True)
    ]


def gpu_sites(
    op: object, shapes: object, dtype: object, target: Target, pins: Schedule | None = None
) -> Sequence[Site]:
    """The launches that `op` applied to operands of these shapes takes on `target`, lowered and not compiled."""
    compiler = GpuKernelCompiler(target)
    launches = launches_of_operator(op, shapes, dtype, compiler)
    if pins:
        launches = [_pinned(launch, target, pins) for launch in launches]
    return [Site(launch, compiler.lowered(launch.choice), frozenset()) for launch in launches]


def _pinned(launch: Launch, target: Target, pins: Schedule) -> Launch:
    spec, extents = launch.choice.subject.spec, launch.call.shaped.extents
    choice = launch.choice._replace(schedule=checked_schedule(spec, extents, target, pins))
    return launch._replace(choice=choice)
