"""Tuning problems of GPUs: a kernel's space, its cost model, and candidates that are compiled in batches.

Triton takes seconds for a kernel, and its processes more to start: a batch of candidates is compiled at once, and what
spills registers is dropped before it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tessera.backend.contract import GpuKernelObject
from tessera.compiler.bind.arrays import Call, View
from tessera.compiler.bind.launches import Choice, Launch
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.device.gpu_kernels import GpuKernelCompiler
from tessera.compiler.device.gpu_launches import Site
from tessera.compiler.device.gpu_schedules import gpu_knobs, without_fusion
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.process.revision import generator_revision
from tessera.compiler.tune.candidates import Launched, launched_under, scalar_bits, workload_of
from tessera.compiler.tune.identities import identify
from tessera.errors import CompileError, UnsupportedTargetError
from tessera.ir.divisors import Divisors
from tessera.priority import current_niceness
from tessera.scheduling.families.family import GpuModel
from tessera.scheduling.families.gpu_cost import GpuRooflineModel
from tessera.scheduling.families.registry import gpu_kernels, kernel_family
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimates
from tessera.scheduling.model.gpu_machine import gpu_machine
from tessera.target import Target
from tessera.target.occupancy import occupancy
from tessera.tuning.interfaces import EstimatedSeconds, TuningProblem
from tessera.tuning.measure.conditions import Cache
from tessera.tuning.measure.metrics import CallWork, Roof
from tessera.tuning.measure.workload import Case, GpuLaunch, SlotAddress, Workload


def gpu_arch(target: Target) -> str:
    """The name that identities have for a GPU: devices of one architecture differ in what is fastest."""
    return f"{target.arch} {target.name}"


def gpu_tuning_problem(call: Call, compiler: GpuKernelCompiler) -> TuningProblem:
    """The problem of one call on a GPU, ready to tune. Raises CompileError for a kernel that has no space."""
    subject = compiler.subject(call)
    posed = _pose(subject, call, compiler.target)
    model = GpuRooflineModel(None, compiler.target)
    candidates = _Candidates(call, compiler)
    shape, sums = posed.model.shape(posed.problem, call.shaped.extents), posed.model.accumulation(posed.problem)

    def estimates(schedules: Sequence[Schedule]) -> Estimates:
        return Estimates.of([model.estimate(posed.problem, schedule) for schedule in schedules])

    return TuningProblem(
        identity=identify(subject, shape, sums, gpu_arch(compiler.target), threads=1),
        space=posed.space,
        build=candidates.build,
        predict=EstimatedSeconds(estimates),
        generator=f"{generator_revision()} Triton {compiler.backend.version()}",
        prepare=candidates.prepare,
        estimated=estimates,
        family=posed.model.name,
        work=_work(call, subject, compiler.target, posed.space.default),
    )


def _work(call: Call, subject: Subject, target: Target, schedule: Schedule) -> CallWork:
    """What one call does, and the bandwidth of L2, or of memory where operands do not stay in it, or it is cold."""
    facts = facts_of([Launch(call, Choice(subject, schedule, 1))])()[0]
    try:
        rates = gpu_machine(target)
    except UnsupportedTargetError as error:
        return CallWork(facts.flops, facts.bytes, no_roof=error.message, is_gpu=True)
    hbm = Roof("HBM", rates.hbm_byte_per_s, rates.sources["HBM"])
    l2 = Roof("L2", rates.l2_byte_per_s, rates.sources["L2"])
    roofs: dict[Cache, Roof] = {"warm": l2 if facts.bytes <= rates.l2_bytes else hbm, "cold": hbm}
    return CallWork(facts.flops, facts.bytes, roofs, is_gpu=True)


class _Posed(NamedTuple):
    """A kernel's problem for rules and cost model, the space that is searched, and what the family knows of both."""

    problem: Any
    space: Space[Any]
    model: GpuModel


def is_tuned(subject: Subject) -> bool:
    """Whether a kernel has a space and a cost model on GPUs: all have but attention and reductions in chunks."""
    return not subject.item.is_step and gpu_kernels(subject.spec).model is not None


def _pose(subject: Subject, call: Call, target: Target) -> _Posed:
    if subject.item.is_step:
        raise CompileError(f"kernel {subject.item.name}: reductions in chunks have one schedule, and are not tuned")
    model = gpu_kernels(subject.spec).model
    if model is None:
        kernels = kernel_family(subject.spec).kernels
        raise CompileError(f"kernel {subject.item.name}: {kernels} has no cost model on GPUs, and is not tuned there")
    pins = without_fusion(subject.pins)
    whole = gpu_knobs(subject.spec, call, target).pinned(pins)
    searched = model.searched(whole, whole.problem)
    choices = {name: choices for name, choices in searched.items() if name not in pins}
    return _Posed(whole.problem, whole.restricted(choices) if choices else whole, model)


class _Candidates:
    """The candidates of one call, compiled as far as they were asked for."""

    def __init__(self, call: Call, compiler: GpuKernelCompiler) -> None:
        self._call, self._compiler = call, compiler
        self._launched: dict[Schedule, tuple[Launched, list[Site]] | CompileError] = {}
        self._objects: dict[tuple[int, Divisors], GpuKernelObject | CompileError] = {}
        self._workload: Workload | None = None

    def prepare(self, schedules: Sequence[Schedule]) -> None:
        """Compiles what the schedules need and is not compiled yet, in one go; beside a running program, of which that
        would take too much at once, one is compiled when it is built.
        """
        if not current_niceness():
            self._compile(schedules)

    def _compile(self, schedules: Sequence[Schedule]) -> None:
        missing: dict[tuple[int, Divisors], Site] = {}
        for schedule in schedules:
            launched = self._launch(schedule)
            for site in () if isinstance(launched, CompileError) else launched[1]:
                if _key(site) not in self._objects:
                    missing[_key(site)] = site
        made = self._compiler.objects(list(missing.values()))
        self._objects.update(zip(missing, made, strict=True))

    def build(self, schedule: Schedule) -> Case:
        """The candidate of a schedule. Raises CompileError where it does not compile, or spills registers."""
        self._compile([schedule])
        launched = self._launch(schedule)
        if isinstance(launched, CompileError):
            raise launched
        (_, slots, temporaries), sites = launched
        kernels = [self._object(site) for site in sites]
        if self._workload is None:
            self._workload = workload_of(self._call, self._compiler.device)
        starts = {view.storage: view.offset_bytes for view, _ in reversed(self._call.arguments)}

        def operand(view: View, kind: str) -> float | SlotAddress:
            if view.is_scalar:
                return scalar_bits(view.dtype)[1]
            return SlotAddress(slots[view.storage], view.offset_bytes - starts.get(view.storage, 0))

        launches = [
            GpuLaunch(kernel.to_bytes(), site.grid, tuple(site.arguments(kernel.parameters, operand)))
            for kernel, site in zip(kernels, sites, strict=True)
        ]
        return Case(self._workload, tuple(launches), temporaries, self._occupancy_limit(sites))

    def _occupancy_limit(self, sites: Sequence[Site]) -> float | None:
        """The least occupancy that registers and shared memory leave to one of the kernels."""
        limits = self._compiler.target.gpu
        if limits is None:
            return None
        kernels = [self._object(site) for site in sites]
        held = [
            occupancy(limits, max(made.threads // limits.warp_size, 1), made.registers, made.shared_bytes)
            for made in kernels
        ]
        return min((each.fraction for each in held), default=None)

    def _launch(self, schedule: Schedule) -> tuple[Launched, list[Site]] | CompileError:
        known = self._launched.get(schedule)
        if known is None:
            try:
                launched = launched_under(self._call, schedule, self._compiler)
                known = launched, [self._site(launch) for launch in launched.launches]
            except CompileError as error:
                known = error
            self._launched[schedule] = known
        return known

    def _site(self, launch: Launch) -> Site:
        return Site(launch, self._compiler.lowered(launch.choice), frozenset())

    def _object(self, site: Site) -> GpuKernelObject:
        made = self._objects[_key(site)]
        if isinstance(made, CompileError):
            raise made
        if made.spill_bytes:
            raise CompileError(f"{site.name} spills {made.spill_bytes} bytes a thread")
        return made


def _key(site: Site) -> tuple[int, Divisors]:
    """What tells compiled kernels apart; the compiler keeps what is lowered alive."""
    return id(site.lowered), site.divisors
