"""Schedules that the model likes, held against the compiler: those that spill go, the others are estimated again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.backend.contract import StaticFacts
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.gpu_planner import GpuPlanner
from tessera.compiler.device.layouts import layouts_of
from tessera.compiler.device.sites import Site
from tessera.errors import CompileError
from tessera.scheduling.families.backends import BACKEND, deciding, named_backend
from tessera.scheduling.families.gpu_cost import GpuRooflineModel
from tessera.scheduling.families.product.gpu.choice import SAME
from tessera.scheduling.families.registry import gpu_model
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_estimate import GpuEstimate
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.target import Target

_LOOKED = 4
"""Of so many schedules for each that is compiled those are taken that make different kernels."""


@dataclass(frozen=True)
class Pruned:
    """A schedule that was compiled and not taken, and why."""

    schedule: Schedule
    reason: str


@dataclass(frozen=True)
class Refined:
    """What is left of a kernel's candidates: the site to launch, what it compiles to, its estimate with the registers
    and shared memory that the compiler reported (None where there is no model of its family), and what was pruned.
    """

    site: Site
    facts: StaticFacts | CompileError
    estimate: GpuEstimate | None
    pruned: tuple[Pruned, ...]


def refined(
    sites: Sequence[Site],
    compiler: DeviceCompiler,
    count: int,
    model: GpuRooflineModel | None = None,
    backends: Sequence[str] = (),
) -> list[Refined]:
    """Each site under the best of its own schedule and of the `count` schedules that the model likes best, each made by
    all `backends` (none: by the one that the site's schedule names).

    All are compiled in one process. Those that do not compile, spill, or fit no multiprocessor are pruned; of the rest
    the one whose estimate with the compiler's figures is least is taken, the site's own where it is as good. With a
    `count` of 0 nothing but the site's own schedule is looked at, and it is kept whatever it does.
    """
    rates = model or GpuRooflineModel(None, compiler.target)
    rivals = [_rivals(site, compiler, count, rates, backends) for site in sites]
    assert isinstance(compiler.planner, GpuPlanner), "only kernels of GPUs are refined"
    found = iter(compiler.planner.facts([each for group in rivals for each in group]))
    return [_best([(each, next(found)) for each in group], compiler.target, rates) for group in rivals]


def resources(facts: StaticFacts) -> BlockResources:
    """What the model takes of a compiled kernel."""
    source = facts.compiler
    return BlockResources(facts.registers, facts.spill_bytes, facts.shared_bytes, facts.warps, source)


def _problem(site: Site) -> Any | None:
    """What the model estimates; None for families that it does not know."""
    subject, call = site.launch.subject, site.launch.call
    if site.launch.schedule.keys() & subject.kernels.step_knobs or not subject.kernels.is_modelled:
        return None
    layouts = layouts_of(subject.spec, call) if subject.kernels.reads_layouts else None
    return subject.problem(call.shaped.extents, 1, layouts)


def _rivals(
    site: Site, compiler: DeviceCompiler, count: int, model: GpuRooflineModel, backends: Sequence[str]
) -> list[Site]:
    """The site, and others of the same launch under schedules that the model likes."""
    problem, own = _problem(site), site.launch.schedule
    if problem is None or not count:
        return [site]
    liked = [own, *(found.schedule for found in gpu_model(problem).best(problem, _LOOKED * count, model.machine))]
    rivals = [each for maker in backends or (named_backend(own),) for each in _made_by(maker, liked, count)]
    return [site, *(_under(schedule, site, compiler) for schedule in rivals if schedule != own)]


def _made_by(backend: str, schedules: Sequence[Schedule], count: int) -> list[Schedule]:
    """The first of some schedules that a backend makes different kernels of."""
    found: dict[Schedule, Schedule] = {}
    for schedule in schedules:
        made = schedule.replace(**{BACKEND: backend})
        found.setdefault(deciding(made), made)
    return list(found.values())[:count]


def _under(schedule: Schedule, site: Site, compiler: DeviceCompiler) -> Site:
    choice = site.launch.choice._replace(schedule=schedule)
    return Site(site.launch._replace(choice=choice), compiler.planner.kernel(choice), site.unaligned)


def _best(
    compiled: Sequence[tuple[Site, StaticFacts | CompileError]], target: Target, model: GpuRooflineModel
) -> Refined:
    pruned: list[Pruned] = []
    kept: list[tuple[float, Refined]] = []
    for site, facts in compiled:
        reason = _why_pruned(facts, target)
        if reason is None and isinstance(facts, StaticFacts):
            estimate = _estimate(site, facts, target, model)
            kept.append((estimate.seconds if estimate is not None else 0.0, Refined(site, facts, estimate, ())))
        else:
            pruned.append(Pruned(site.launch.schedule, reason or ""))
    if not kept:  # nothing better is known than what was asked for
        site, facts = compiled[0]
        estimate = _estimate(site, facts, target, model) if isinstance(facts, StaticFacts) else None
        return Refined(site, facts, estimate, tuple(pruned[1:]))
    least = min(seconds for seconds, _ in kept)
    taken = next(each for seconds, each in kept if seconds <= SAME * least)
    return Refined(taken.site, taken.facts, taken.estimate, tuple(pruned))


def _why_pruned(facts: StaticFacts | CompileError, target: Target) -> str | None:
    if isinstance(facts, CompileError):
        return f"does not compile: {facts.args[0]}"
    if facts.spill_bytes:
        return f"spills {facts.spill_bytes} bytes a thread"
    held = facts.occupancy(target)
    return None if held.blocks else f"fits no multiprocessor, for its {held.binds}"


def _estimate(site: Site, facts: StaticFacts, target: Target, model: GpuRooflineModel) -> GpuEstimate | None:
    problem = _problem(site)
    return None if problem is None else model.estimate(problem, site.launch.schedule, resources(facts))
