"""The compiler of a device: the schedule of each kernel, its Tile IR, and plans of launches.

What differs between devices is in what families have for each (`Subject.kernels`), in facts of the target, in the
backend, and in the planner, which knows how kernels are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from tessera import settings
from tessera.backend.contract import Backend
from tessera.backend.registry import backend_of
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.constants import over_constants
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, Memory
from tessera.compiler.bind.subjects import Subject, subject_of
from tessera.compiler.decompose.copies import CopyKernels
from tessera.compiler.decompose.proposals import proposed
from tessera.compiler.device.cpu_planner import CpuPlanner
from tessera.compiler.device.gpu_planner import ALIGNED, GpuPlanner
from tessera.compiler.device.layouts import layouts_of
from tessera.compiler.device.planner import Planner
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.ir.tile.operations import find_kernel
from tessera.lazy.policy import FAST, Policy, current_policy
from tessera.lazy.structures.structure import Plan
from tessera.lazy.threads import worker_count
from tessera.profiling.recording.facts import SCRATCH, Traffic
from tessera.runtime.devices.device import Driver
from tessera.scheduling.families.backends import BACKEND, named_backend
from tessera.scheduling.families.cost import Estimate, RooflineModel
from tessera.scheduling.families.family import Kernels, Layouts, Problem
from tessera.scheduling.families.gpu_cost import GpuRooflineModel
from tessera.scheduling.families.legality import FUSION
from tessera.scheduling.families.ordering import keeping_order
from tessera.scheduling.families.registry import family_of_region, lower
from tessera.scheduling.language.knobs import Space, is_like
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sizes import size_class
from tessera.scheduling.language.sources import ChosenSchedule
from tessera.scheduling.model.choice import modelled_choice
from tessera.system.caching import cached_property
from tessera.target import Target
from tessera.target.stored_ceilings import stored_ceilings
from tessera.tuning.store.processors import arch_of

AnySpace: TypeAlias = Space[Any]
"""The schedules of a kernel of any family."""

TunedSchedules: TypeAlias = Callable[["DeviceCompiler", Call, Problem], ChosenSchedule | None]
"""Gives the tuned schedule of a call, or None where nothing was tuned for it."""


class Remembered(NamedTuple):
    """What gives tuned schedules, also of calls whose extents are symbolic, and whether it will give the same again:
    while kernels are tuned between calls it may not.
    """

    tuned: TunedSchedules
    is_settled: Callable[[], bool]


FIXED: Final = Policy("deterministic")
"""What subjects are told apart by that may not know what was measured."""

REMEMBERED: Final = 1 << 14
"""Choices of kernels kept before they are made again."""


class DeviceCompiler:
    """Chooses schedules, compiles kernels and makes plans for one device: the `PlanCompiler` of binding.

    Without a `driver` the compiler of a GPU chooses and lowers for one that need not be there, and makes no plans.
    `tuned`, when set, is asked first. `revision` counts how often schedules were forgotten.
    """

    def __init__(self, target: Target, backend: Backend[Any] | None = None, driver: Driver | None = None) -> None:
        self.target, self.driver = target, driver
        self.planner = self._planner(backend or backend_of("cpu" if target.kind == "cpu" else "cuda"))
        self.device, self.largest_axis = self.planner.device, self.planner.largest_axis
        self.tuned: TunedSchedules | None = None
        self.remembered: Remembered | None = None
        self.decided: dict[object, bool] = {}
        self.revision = 0
        self._has_workers, self._has_maths = target.kind == "cpu", target.has_several_maths
        self._unmeasured = target.with_core(None)
        self._chosen: dict[object, Choice] = {}
        self._modelled: dict[object, Schedule] = {}
        self._traffic: dict[object, Traffic] = {}
        self._copies = CopyKernels()

    def _planner(self, backend: Any) -> Planner:
        return CpuPlanner(self, backend) if self.target.kind == "cpu" else GpuPlanner(self, backend, self.driver)

    @cached_property
    def arch(self) -> str:
        """What winners of tuning on this device are kept under."""
        return arch_of(self.target)

    @property
    def backend(self) -> Backend[Any]:
        """What makes code of Tile IR."""
        return self.planner.backend

    # -- the path of binding --------------------------------------------------------------------------------------

    def subject(self, call: Call) -> Subject:
        """The subject of a call on this device: one object for each kernel and layout pattern, and for each policy
        where that says how products are multiplied. Under a fixed order of sums it knows nothing of what was measured
        of the machine's cores, which may not decide such an order.
        """
        policy, target = current_policy(), self.target
        if not self._has_maths:
            blind = policy.fixed_order and target.core is not None
            policy, target = (FIXED, self._unmeasured) if blind else (FAST, target)
        return subject_of(call.item, call.shaped.pattern, self, target, policy)

    def over_constants(self, call: Call) -> Call:
        """The call over packed copies of the constants that its family has packed for this device."""
        kernels = family_of_region(call.item.family).on(self.target)
        if kernels is None or kernels.packed is None:
            return call
        return over_constants(call, self.subject, kernels.packed)

    def choose(self, call: Call, schedule: Schedule | None = None, unaligned: frozenset[int] = ALIGNED) -> Choice:
        """How a call will run: under `schedule` if one is given, else as tuned, else by default. `unaligned` are the
        slots whose addresses may be anything.
        """
        subject, policy = self.subject(call), current_policy()
        threads = worker_count() if self._has_workers else 1
        buckets = not self._has_workers and settings.current().shape_buckets
        layouts = layouts_of(subject.spec, call, unaligned) if subject.kernels.reads_layouts else None
        lies = None if layouts is None else tuple(layouts.values())
        key = (subject, tuple(call.shaped.extents.values()), threads, policy, schedule, lies, buckets)
        known = self._chosen.get(key)
        if known is None:
            # A fixed order of sums may not depend on how many workers there are, so neither may the schedule.
            problem = subject.problem(call.shaped.extents, 1 if policy.fixed_order else threads, layouts)
            chosen = (
                self._unasked(subject, call, problem, layouts, buckets, unaligned)
                if schedule is None
                else ChosenSchedule(schedule, "given")
            )
            known = self._choice(subject, problem, chosen, threads)
            if len(self._chosen) >= REMEMBERED:
                self._chosen.clear()
            self._chosen[key] = known
        return known

    def _choice(self, subject: Subject, problem: Problem, chosen: ChosenSchedule, threads: int) -> Choice:
        blocked = self.blocked(subject, chosen.schedule, problem)
        return Choice(blocked, chosen.schedule, _useful_workers(subject, problem, threads), chosen.source)

    @property
    def is_settled(self) -> bool:
        """Whether `choose` gives the same again until schedules are forgotten, so that `choose_by_size` can tell."""
        known = self.remembered
        return self.tuned is None or (known is not None and known.tuned is self.tuned and known.is_settled())

    def choose_by_size(self, call: Call, schedule: Schedule | None = None) -> Choice:
        """As `choose` on a CPU while it `is_settled`, for extents that may be symbolic (`lazy/symbols`): what sizes
        have to be for this choice is noted there. Keeps nothing.
        """
        subject, policy, threads = self.subject(call), current_policy(), worker_count()
        problem = subject.problem(call.shaped.extents, 1 if policy.fixed_order else threads)
        if schedule is not None:
            return self._choice(subject, problem, ChosenSchedule(schedule, "given"), threads)
        chosen = self._unasked(subject, call, problem, None, False, ALIGNED)
        return self._choice(subject, problem, chosen, threads)

    def _unasked(
        self,
        subject: Subject,
        call: Call,
        problem: Problem,
        layouts: Layouts | None,
        buckets: bool,
        unaligned: frozenset[int],
    ) -> ChosenSchedule:
        """The schedule of a call for which nobody gave one. Nothing is tuned for buckets of shapes, which share
        kernels, nor for addresses that may be anything.
        """
        if not (buckets or subject.pins):
            # Reductions in chunks are not tuned: their space has one kernel for all, which leaves most of a GPU idle.
            schedule = proposed(call, subject, subject.target)
            if schedule is not None:
                return ChosenSchedule(schedule, "model")
        if self.tuned is not None and not (buckets or unaligned):
            tuned = self.tuned(self, call, problem)
            if tuned is not None:
                return tuned
        if buckets:
            largest = _bucketed(call.shaped.extents, subject.kernels)
            shared = self._untuned(subject, subject.problem(largest, 1, layouts))
            if not subject.kernels.space(problem).violations(_without_fusion(shared.schedule)):
                return shared
        return self._untuned(subject, problem)

    def choose_default(self, subject: Subject, call: Call) -> Choice:
        """How one step of a call will run under the default schedule of its subject."""
        threads = worker_count() if self._has_workers else 1
        problem = subject.problem(call.shaped.extents, threads)
        schedule, source = self._untuned(subject, problem)
        return Choice(subject, schedule, _useful_workers(subject, problem, threads), source)

    def without_addresses(self, launch: Launch, unaligned: frozenset[int]) -> Launch:
        """The launch under a schedule that does not rely on the addresses of some slots."""
        call, choice = launch.call, launch.choice
        if not choice.subject.kernels.reads_layouts or all(
            view.storage.slot not in unaligned for view, _ in call.arguments
        ):
            return launch
        chosen = self.choose(call, None, unaligned)
        # What was cut in two is so already.
        return Launch(call, chosen._replace(schedule=chosen.schedule.replace(split_k=1)))

    def blocked(self, subject: Subject, schedule: Schedule, problem: Problem) -> Subject:
        """The subject, with code for several K blocks where the schedule's block does not hold K."""
        return subject.in_blocks if subject.kernels.in_blocks(schedule, problem) else subject

    def copy_item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor of this dtype and rank; extents of 1 are static."""
        return self._copies.item(dtype, shape)

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> Plan:
        """The plan that runs the launches in order, its kernels compiled as far as they are new. Raises what the
        planner of the device raises.
        """
        return self.planner.plan(launches, memory)

    def forget_schedules(self) -> None:
        """Schedules are chosen anew; compiled kernels stay."""
        self._chosen.clear()
        self._modelled.clear()
        self.decided.clear()
        self.revision += 1

    # -- kernels --------------------------------------------------------------------------------------------------

    def tile_ir(self, subject: Subject, schedule: Schedule, timed: bool = False) -> ModuleOp:
        """The Tile IR of a subject under a schedule, marked as a `timed` build if need be."""
        module = lower(subject.spec, schedule, subject.target)
        if timed:
            find_kernel(module).attributes["timed"] = UnitAttr()
        return module

    # -- schedules ------------------------------------------------------------------------------------------------

    def problem(self, call: Call) -> Problem:
        """What rules and cost models need to know of a call as it runs here."""
        subject = self.subject(call)
        layouts = layouts_of(subject.spec, call) if subject.kernels.reads_layouts else None
        is_alone = current_policy().fixed_order or not self._has_workers
        return subject.problem(call.shaped.extents, 1 if is_alone else worker_count(), layouts)

    def space(self, subject: Subject, problem: Problem) -> AnySpace:
        """The schedules of a problem: the user pins knobs, and a policy the order of sums."""
        whole = subject.kernels.space(problem)
        pins = subject.pins if FUSION in whole.by_name else _without_fusion(subject.pins)
        schedules = whole.pinned(pins)
        keeps = current_policy().fixed_order and subject.kernels.sum_order is not None
        return keeping_order(schedules) if keeps else schedules

    def permits(self, subject: Subject, problem: Problem, schedule: Schedule) -> bool:
        """Whether a schedule that comes from another shape or from a file has the knobs of a problem and keeps its
        rules, the user's pins and the policy's order of sums, and names a backend that there is here.
        """
        kernels, start = subject.kernels, subject.kernels.start(problem)
        if not is_like(schedule, start) and kernels.space(problem).unlike(schedule):
            return False
        if BACKEND in start and named_backend(schedule) not in self.planner.backends:
            return False
        if not all(rule.holds(schedule, problem) for rule in kernels.rules):
            return False
        if any(schedule.get(knob) != value for knob, value in subject.pins.items() if knob in start):
            return False
        order = kernels.sum_order
        return not current_policy().fixed_order or order is None or order(schedule, problem) == order(start, problem)

    def _untuned(self, subject: Subject, problem: Problem) -> ChosenSchedule:
        """`default_schedule`, and who chose it: starts of GPUs are chosen by models of their families."""
        if subject.pins:
            return ChosenSchedule(self._around_pins(subject, problem), "pinned")
        start = subject.kernels.start(problem).settled()
        schedule = self._from_start(subject, problem, start)
        is_start = self.model is not None and schedule == start
        return ChosenSchedule(schedule, "default" if is_start else "model")

    def default_schedule(self, subject: Subject, problem: Problem) -> Schedule:
        """The schedule of a kernel that nobody has tuned."""
        return self._untuned(subject, problem).schedule

    def _from_start(self, subject: Subject, problem: Problem, start: Schedule) -> Schedule:
        """What the model makes of the schedule that a family starts from."""
        # A fixed order of sums may not depend on what was measured on this machine either.
        if self.model is None or current_policy().fixed_order:
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
        """The pinned knobs, and around them what the model likes best; under a fixed order of sums, what is legal.

        Raises ScheduleError (E_SCHEDULE_ILLEGAL) and TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) for pins that no legal
        schedule has.
        """
        space = self.space(subject, problem)
        if self.model is None or current_policy().fixed_order:
            chosen = space.default
        else:
            chosen = modelled_choice(space, self.model).schedule
        apart = FUSION not in space.by_name and subject.pins.get(FUSION) is False
        return chosen.replace(fusion=False) if apart else chosen

    # -- costs ----------------------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> RooflineModel | None:
        """The cost model that choices at binding ask, over this machine's ceilings where they have been measured; None
        on GPUs, where families ask theirs for the schedules that they start from.
        """
        return RooflineModel(stored_ceilings(), self.target) if self._has_workers else None

    @property
    def rates(self) -> RooflineModel | GpuRooflineModel:
        """The cost model that ranks schedules. Raises UnsupportedTargetError for a GPU that nothing is known of."""
        return self.model or self._published

    @cached_property
    def _published(self) -> GpuRooflineModel:
        return GpuRooflineModel(None, self.target)

    def estimate(self, launch: Launch) -> Estimate:
        """What the cost model expects of a launch. KeyError for a kernel whose family has none on this device."""
        subject, extents = launch.subject, launch.call.shaped.extents
        layouts = layouts_of(subject.spec, launch.call) if subject.kernels.reads_layouts else None
        return self.rates.estimate(subject.problem(extents, launch.choice.workers, layouts), launch.schedule)

    def traffic(self, choice: Choice, extents: Mapping[str, int]) -> Traffic:
        """What the cost model says that a launch moves, by memory level, and its scratch memory, in bytes; nothing on
        devices without a model.
        """
        if self.model is None:
            return ()
        key = choice, tuple(extents.values())
        known = self._traffic.get(key)
        if known is None:
            problem = choice.subject.problem(extents, choice.workers)
            scratch = float(self.planner.scratch_bytes(choice))
            if len(self._traffic) >= REMEMBERED:
                self._traffic.clear()
            known = (*self.model.traffic(problem, choice.schedule).items(), (SCRATCH, scratch))
            self._traffic[key] = known
        return known


def _useful_workers(subject: Subject, problem: Problem, workers: int) -> int:
    """Workers that have something to do."""
    return workers if subject.kernels.is_shared(problem) else 1


def _without_fusion(schedule: Schedule) -> Schedule:
    """A schedule without the knob `fusion`, which spaces of GPUs do not have."""
    return Schedule({knob: value for knob, value in schedule.items() if knob != FUSION})


def _bucketed(extents: Mapping[str, int], kernels: Kernels) -> Mapping[str, int]:
    """The largest extents of the bucket that these are in; those that decide what code is made are as they are."""
    return {
        axis: extent if extent <= 1 or axis in kernels.code_axes else 1 << (extent - 1).bit_length()
        for axis, extent in extents.items()
    }
