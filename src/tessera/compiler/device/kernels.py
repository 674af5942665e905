"""Kernels of a program: the schedule of each, its Tile IR and its object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from tessera.backend.contract import CpuBackend, LoadedKernel
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.constants import over_constants
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, LibraryLaunch, Memory
from tessera.compiler.bind.library_calls import library_step
from tessera.compiler.bind.subjects import Subject, subject_of
from tessera.compiler.decompose.copies import CopyKernels
from tessera.compiler.decompose.spectral_steps import spectral_step
from tessera.compiler.device.recipes import recipe
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.memo import Table
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.ir.tile import find_kernel
from tessera.lazy.devices import CPU
from tessera.lazy.policy import current_policy
from tessera.lazy.threads import worker_count
from tessera.profiling.recording.facts import SCRATCH, Traffic
from tessera.runtime import native
from tessera.runtime.library import raising
from tessera.runtime.plan import BoundPlan, Step
from tessera.scheduling.binding.axes import UNLIMITED
from tessera.scheduling.families.cost import Estimate, RooflineModel
from tessera.scheduling.families.family import Problem
from tessera.scheduling.families.ordering import keeping_order, sum_order
from tessera.scheduling.families.registry import family_of_region, kernel_family, lower
from tessera.scheduling.language.knobs import Space, is_like
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sizes import size_class
from tessera.scheduling.model.choice import modelled_choice
from tessera.target import Target
from tessera.target.stored_ceilings import stored_ceilings


@dataclass(frozen=True, eq=False)
class Code:
    """Loaded code, one object for all kernels of the same recipe."""

    loaded: LoadedKernel
    workspace_bytes: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled kernel under one schedule."""

    subject: Subject
    schedule: Schedule
    code: Code


KERNELS: Final = Table[tuple[Subject, Schedule], Kernel]("compiled kernels")

AnySpace: TypeAlias = Space[Any]
"""The schedules of a kernel of any family."""

ScheduleSource = Callable[["KernelCompiler", Call, Problem], Schedule | None]
"""Gives the tuned schedule of a call, or None where nothing was tuned for it."""

REMEMBERED = 1 << 14
"""Choices of kernels kept before they are made again."""


class KernelCompiler:
    """Chooses schedules, compiles kernels and makes plans for one CPU: the `PlanCompiler` of "cpu".

    `source`, when set, is asked first (tuned schedules).
    """

    device = CPU
    largest_axis = UNLIMITED

    def __init__(self, target: Target, backend: CpuBackend) -> None:
        self.target, self.backend = target, backend
        self.source: ScheduleSource | None = None
        self._chosen: dict[object, Choice] = {}
        self._codes: WeakValueDictionary[str, Code] = WeakValueDictionary()
        self._modelled: dict[object, Schedule] = {}
        self._traffic: dict[object, Traffic] = {}
        self._copies = CopyKernels()
        self.decided: dict[object, bool] = {}

    # -- the path of binding --------------------------------------------------------------------------------------

    def subject(self, call: Call) -> Subject:
        """The subject of a call for this CPU: one object for each kernel and layout pattern."""
        return subject_of(call.item, call.shaped.pattern, self, self.target)

    def over_constants(self, call: Call) -> Call:
        """The call over packed copies of the constants that its family has packed."""
        packed = family_of_region(call.item.family).packed
        return call if packed is None else over_constants(call, self.subject, packed, self.target)

    def choose(self, call: Call, schedule: Schedule | None = None) -> Choice:
        """How a call will run: under `schedule` if one is given, else as tuned, else by default."""
        subject = self.subject(call)
        policy = current_policy()
        threads = worker_count()
        key = (subject, tuple(call.shaped.extents.values()), threads, policy, schedule)
        known = self._chosen.get(key)
        if known is None:
            # A fixed order of sums may not depend on how many workers there are, so neither may the schedule.
            problem = subject.problem(call.shaped.extents, 1 if policy.fixed_order else threads)
            if schedule is None and self.source is not None:
                schedule = self.source(self, call, problem)
            if schedule is None:
                schedule = self.default_schedule(subject, problem)
            known = Choice(self.blocked(subject, schedule, problem), schedule, useful_workers(problem, threads))
            if len(self._chosen) >= REMEMBERED:
                self._chosen.clear()
            self._chosen[key] = known
        return known

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> BoundPlan:
        """One native call that runs the launches in order, over one address table."""
        return self.plan_of([self.step(launch, self.kernel) for launch in launches], launches, memory)

    def plan_of(
        self,
        steps: Sequence[Step],
        launches: Sequence[AnyLaunch],
        memory: Memory,
        around: Callable[[Callable[[int], None]], Callable[[int], None]] | None = None,
    ) -> BoundPlan:
        """The plan of the launches with these steps; `around` makes of what runs a frame what is called instead."""
        calls = any([not isinstance(launch, Launch) for launch in launches])  # noqa: C419 - on the path of binding
        run = raising(native.driver().run) if calls else None
        return BoundPlan(
            steps=steps,
            slots=memory.slots,
            results=memory.results,
            outputs=memory.outputs,
            arena_bytes=memory.arena_bytes,
            facts=facts_of(launches, self.traffic),
            derived=memory.derived,
            call=run if around is None else around(run or native.driver().run),
        )

    def step(self, launch: AnyLaunch, kernel_of: Callable[[Choice], Kernel]) -> Step:
        """The step of a launch, of a kernel that `kernel_of` gives."""
        if isinstance(launch, LibraryLaunch):
            return _call_step(launch)
        descriptors: list[int] = []
        for view, words in launch.call.arguments:
            descriptors.append(view.storage.slot)
            if not view.is_scalar:
                descriptors.append(view.storage.offset + view.offset_bytes)
                descriptors += words
        code = kernel_of(launch.choice).code
        return Step(code.loaded, tuple(descriptors), launch.choice.workers, code.workspace_bytes)

    def kernel(self, choice: Choice) -> Kernel:
        """The kernel of a choice, compiled if its pattern and schedule are new."""
        return self.compiled(choice.subject, choice.schedule)

    def forget_schedules(self) -> None:
        """Schedules are chosen anew; compiled kernels stay."""
        self._chosen.clear()
        self._modelled.clear()
        self.decided.clear()

    def blocked(self, subject: Subject, schedule: Schedule, problem: Problem) -> Subject:
        """The subject, with code for several K blocks where the schedule's block does not hold K."""
        return subject.in_blocks if kernel_family(problem).in_blocks(schedule, problem) else subject

    def choose_default(self, subject: Subject, call: Call) -> Choice:
        """How one step of a call will run under the default schedule of its subject."""
        problem = subject.problem(call.shaped.extents, worker_count())
        return Choice(subject, self.default_schedule(subject, problem), useful_workers(problem, problem.workers))

    # -- compiling ------------------------------------------------------------------------------------------------

    def compiled(self, subject: Subject, schedule: Schedule) -> Kernel:
        """The kernel of a subject under a schedule, from memory, from disk, or compiled now."""
        known = subject.item.memo.of(KERNELS)
        kernel = known.get((subject, schedule))
        if kernel is None:
            kernel = known[subject, schedule] = Kernel(subject, schedule, self._code(subject, schedule))
        return kernel

    def timed(self, choice: Choice) -> Kernel:
        """The kernel of a choice as a build of its own that times its tiles, and is kept by the caller."""
        return Kernel(choice.subject, choice.schedule, self._code(choice.subject, choice.schedule, timed=True))

    def _code(self, subject: Subject, schedule: Schedule, timed: bool = False) -> Code:
        key = recipe(subject.spec, schedule, self.target, self.backend.version(), timed)
        code = self._codes.get(key)
        if code is None:
            stored = self.backend.stored(key, lambda: self.tile_ir(subject, schedule, timed), self.target)
            code = self._codes[key] = Code(self.backend.load(stored), stored.workspace_bytes)
        return code

    def ready(self, subject: Subject, schedule: Schedule, problem: Problem) -> Kernel:
        """The kernel that a call under a schedule will launch, compiled before it is bound."""
        return self.compiled(self.blocked(subject, schedule, problem), schedule)

    def tile_ir(self, subject: Subject, schedule: Schedule, timed: bool = False) -> ModuleOp:
        """The Tile IR of a subject under a schedule, marked as a `timed` build if need be."""
        module = lower(subject.spec, schedule, self.target)
        if timed:
            find_kernel(module).attributes["timed"] = UnitAttr()
        return module

    # -- schedules ------------------------------------------------------------------------------------------------

    def space(self, subject: Subject, problem: Problem) -> AnySpace:
        """The schedules of a problem: the user pins knobs, and a policy the order of sums."""
        schedules = kernel_family(problem).space(problem).pinned(subject.pins)
        return keeping_order(schedules) if current_policy().fixed_order else schedules

    def start(self, problem: Problem) -> Schedule:
        """The proven schedule that the model and the tuner start from."""
        return kernel_family(problem).start(problem)

    def permits(self, subject: Subject, problem: Problem, schedule: Schedule) -> bool:
        """Whether a schedule that comes from another shape or from a file has the knobs of a problem and keeps its
        rules, the user's pins and the policy's order of sums.
        """
        family, start = kernel_family(problem), self.start(problem)
        if not is_like(schedule, start) and family.space(problem).unlike(schedule):
            return False
        if not all(rule.holds(schedule, problem) for rule in family.rules):
            return False
        if any(schedule.get(knob) != value for knob, value in subject.pins.items()):
            return False
        return not current_policy().fixed_order or (sum_order(schedule, problem) == sum_order(start, problem))

    @cached_property
    def model(self) -> RooflineModel:
        """The cost model over this machine's ceilings, where they have been measured."""
        return RooflineModel(stored_ceilings(), self.target)

    def estimate(self, launch: Launch) -> Estimate:
        """What the cost model expects of a launch."""
        problem = launch.subject.problem(launch.call.shaped.extents, launch.choice.workers)
        return self.model.estimate(problem, launch.schedule)

    def traffic(self, choice: Choice, extents: Mapping[str, int]) -> Traffic:
        """What the cost model says that a launch moves, by memory level, and its scratch memory, in bytes."""
        key = choice, tuple(extents.values())
        known = self._traffic.get(key)
        if known is None:
            problem = choice.subject.problem(extents, choice.workers)
            scratch = choice.workers * self.kernel(choice).code.workspace_bytes
            if len(self._traffic) >= REMEMBERED:
                self._traffic.clear()
            known = (*self.model.traffic(problem, choice.schedule).items(), (SCRATCH, float(scratch)))
            self._traffic[key] = known
        return known

    def default_schedule(self, subject: Subject, problem: Problem) -> Schedule:
        """The schedule of a kernel that nobody has tuned."""
        if subject.pins:
            return self._around_pins(subject, problem)
        start = self.start(problem)
        if current_policy().fixed_order:  # which may not depend on what was measured on this machine either
            return start
        sizes = tuple([size_class(extent) for extent in problem.sizes])
        key = (subject, start, sizes, problem.workers)
        change = self._modelled.get(key)
        if change is None:
            chosen = modelled_choice(self.space(subject, problem), self.model).schedule
            change = Schedule({knob: value for knob, value in chosen.items() if start[knob] != value})
            self._modelled[key] = change
        if not change:
            return start
        changed = start.replace(**change)
        return start if self.space(subject, problem).violations(changed) else changed

    def _around_pins(self, subject: Subject, problem: Problem) -> Schedule:
        """The pinned knobs, and around them what the model likes best; under a fixed order of sums, what is legal."""
        space = self.space(subject, problem)
        return space.default if current_policy().fixed_order else modelled_choice(space, self.model).schedule

    # -- copies ---------------------------------------------------------------------------------------------------

    def copy_item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor of this dtype and rank; extents of 1 are static."""
        return self._copies.item(dtype, shape)


def _call_step(launch: LibraryLaunch) -> Step:
    """The step of a call of a library, native where there is a kernel for it."""
    native = spectral_step(launch)
    return library_step(launch) if native is None else native


def useful_workers(problem: Problem, workers: int) -> int:
    """Workers that have something to do."""
    return workers if kernel_family(problem).is_shared(problem) else 1
