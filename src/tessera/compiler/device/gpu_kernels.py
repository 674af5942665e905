"""The compiler of a GPU: schedules, Tile IR, kernel objects and plans. Kernels are compiled where a plan is made of
them, all that are missing in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from tessera import settings
from tessera.backend.contract import GpuBackend, GpuKernelObject
from tessera.backend.registry import gpu_backend
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, Memory, kernel_launches
from tessera.compiler.bind.library_calls import library_call
from tessera.compiler.bind.subjects import Subject, subject_of
from tessera.compiler.decompose.copies import CopyKernels
from tessera.compiler.decompose.proposals import proposed
from tessera.compiler.device.gpu_launches import LARGEST, Lowered, Site
from tessera.compiler.device.gpu_schedules import gpu_knobs, gpu_schedule, layouts_of, without_fusion
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.memo import Table
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.errors import CompileError, UnsupportedTargetError
from tessera.ir.divisors import Divisors
from tessera.ir.grid import programs_of
from tessera.ir.tile import find_kernel
from tessera.lazy.policy import current_policy
from tessera.runtime.device import Driver
from tessera.runtime.gpu_graphs import shared_runner
from tessera.runtime.gpu_library_plan import MixedDevicePlan
from tessera.runtime.gpu_plan import DevicePlan
from tessera.scheduling.families.attention.space import HEADS
from tessera.scheduling.families.family import Layouts
from tessera.scheduling.families.registry import gpu_kernels, lower
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target

REMEMBERED = 1 << 14
"""Choices that are kept before they are made again."""

LOWERED: Final = Table[tuple[Subject, Schedule, bool], Lowered]("lowered kernels, and their timed builds")

ScheduleSource = Callable[["GpuKernelCompiler", Call], Schedule | None]


class GpuKernelCompiler:
    """Chooses schedules, compiles kernels and makes plans for one GPU: the `PlanCompiler` of a device.

    Without a `driver` it chooses and lowers for a GPU that need not be there, and makes no plans.
    """

    model = None

    def __init__(self, target: Target, driver: Driver | None = None, backend: GpuBackend | None = None) -> None:
        self.target, self.driver = target, driver
        self.device = "cuda:0" if driver is None else driver.name
        self.largest_axis = LARGEST
        self.backend = backend or gpu_backend()
        self.source: ScheduleSource | None = None
        """Where tuned schedules come from, if any."""
        self.decided: dict[object, bool] = {}
        self._chosen: dict[object, Choice] = {}
        self._copies = CopyKernels()

    # -- the path of binding --------------------------------------------------------------------------------------

    def subject(self, call: Call) -> Subject:
        """The subject of a call on this device: one object for each kernel, layout pattern and policy."""
        return subject_of(call.item, call.shaped.pattern, self, self.target, current_policy())

    def over_constants(self, call: Call) -> Call:
        """The call itself: GPUs read constants where they are."""
        return call

    def choose(self, call: Call, schedule: Schedule | None = None, unaligned: frozenset[int] = frozenset()) -> Choice:
        """How a call will run: under `schedule` if one is given, else as tuned or by default, around the user's pins.
        `unaligned` are the slots whose addresses may be anything; nothing is tuned for those, nor for buckets of
        shapes, which share kernels.
        """
        subject = self.subject(call)
        if schedule is not None:
            return Choice(subject, schedule, 1)
        buckets, spec = settings.current().shape_buckets, subject.spec
        layouts = layouts_of(spec, call, unaligned)
        key = (subject, tuple(call.shaped.extents.values()), tuple(layouts.values()), current_policy(), buckets)
        known = self._chosen.get(key)
        if known is None:
            # Reductions in chunks are not tuned: their space has one kernel for all, which leaves most of a GPU idle.
            chunked = None if buckets or subject.pins else proposed(call, subject, self.target)
            source = None if buckets or unaligned or chunked else self.source
            tuned = None if source is None else source(self, call)
            chosen = chunked or tuned or self._default(subject, call, layouts, buckets)
            if len(self._chosen) >= REMEMBERED:
                self._chosen.clear()
            known = self._chosen[key] = Choice(subject, chosen, 1)
        return known

    def _default(self, subject: Subject, call: Call, layouts: Layouts, buckets: bool) -> Schedule:
        """What nobody has tuned: of the bucket's largest extents where that is legal for these, too."""
        spec, extents = subject.spec, call.shaped.extents
        if buckets:
            shared = gpu_schedule(spec, _bucketed(extents), self.target, subject.pins, layouts)
            if not gpu_knobs(spec, call, self.target).violations(without_fusion(shared)):
                return shared
        return gpu_schedule(spec, extents, self.target, subject.pins, layouts)

    def forget_schedules(self) -> None:
        """Schedules are chosen anew; compiled kernels stay."""
        self._chosen.clear()

    def choose_default(self, subject: Subject, call: Call) -> Choice:
        """How one step of a call will run under the default schedule of its subject."""
        return Choice(subject, self._default(subject, call, {}, False), 1)

    def copy_item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor of this dtype and rank; extents of 1 are static."""
        return self._copies.item(dtype, shape)

    # -- kernels --------------------------------------------------------------------------------------------------

    def tile_ir(self, subject: Subject, schedule: Schedule, timed: bool = False) -> ModuleOp:
        """The Tile IR of a subject under a schedule, marked as a `timed` build if need be."""
        module = lower(subject.spec, schedule, self.target)
        if timed:
            find_kernel(module).attributes["timed"] = UnitAttr()
        return module

    def lowered(self, choice: Choice, timed: bool = False) -> Lowered:
        """A choice lowered, once; or its `timed` build."""
        subject, schedule = choice.subject, choice.schedule
        known = subject.item.memo.of(LOWERED)
        lowered = known.get((subject, schedule, timed))
        if lowered is None:
            module = self.tile_ir(subject, schedule, timed)
            lowered = known[subject, schedule, timed] = Lowered(module, programs_of(module, self.target))
        return lowered

    # -- plans ----------------------------------------------------------------------------------------------------

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> DevicePlan:
        """The plan that launches the kernels in order.

        Raises UnsupportedTargetError where no device was given, or a grid would be too large, and CompileError for what
        the device's compiler refuses.
        """
        return self._plan(list(launches), memory, frozenset())

    def _plan(self, launches: Sequence[AnyLaunch], memory: Memory, unaligned: frozenset[int]) -> DevicePlan:
        driver = self.require_driver()
        launches = self.relying_less(launches, unaligned)
        sites = [Site(launch, self.lowered(launch.choice), unaligned) for launch in kernel_launches(launches)]
        self.compile_missing(sites)
        steps = [site.step() for site in sites]
        fields = self.plan_fields(launches, memory, sites)
        fields["realigned"] = lambda slots: self._plan(launches, memory, unaligned | slots)
        if len(sites) < len(launches):
            following = iter(steps)
            pieces = [next(following) if isinstance(launch, Launch) else library_call(launch) for launch in launches]
            return MixedDevicePlan(driver=driver, pieces=pieces, **fields)
        kernels = [step.kernel for step in steps]
        is_shared = bool(kernels) and settings.current().shape_buckets
        runner = shared_runner(driver, kernels) if is_shared else None
        return DevicePlan(driver=driver, steps=steps, runner=runner, **fields)

    def require_driver(self) -> Driver:
        """The driver. Raises UnsupportedTargetError where no device was given."""
        if self.driver is None:
            raise UnsupportedTargetError(f"kernels for {self.target.name} are compiled here, and launched nowhere")
        return self.driver

    def plan_fields(self, launches: Sequence[AnyLaunch], memory: Memory, sites: Sequence[Site]) -> dict[str, Any]:
        """What plans of these launches, whose kernels are `sites`, are told beside their steps."""
        return {
            "slots": memory.slots,
            "results": memory.results,
            "outputs": memory.outputs,
            "arena_bytes": memory.arena_bytes,
            "facts": facts_of(launches),
            "aligned": sorted(set().union(*[site.aligned_slots for site in sites])),
        }

    def relying_less(self, launches: Sequence[AnyLaunch], unaligned: frozenset[int]) -> Sequence[AnyLaunch]:
        """Launches under schedules that do not rely on the addresses of some slots."""
        if not unaligned:
            return launches
        return [self._rechosen(launch, unaligned) if isinstance(launch, Launch) else launch for launch in launches]

    def _rechosen(self, launch: Launch, unaligned: frozenset[int]) -> Launch:
        """A launch under a schedule that does not rely on the addresses of some slots."""
        call, choice = launch.call, launch.choice
        reads_layouts = gpu_kernels(choice.subject.spec).reads_layouts
        if not reads_layouts or not any(view.storage.slot in unaligned for view, _ in call.arguments):
            return launch
        chosen = self.choose(call, None, unaligned)
        # What was cut in two is so already.
        return Launch(call, chosen._replace(schedule=chosen.schedule.replace(split_k=1)))

    def objects(self, sites: Sequence[Site]) -> list[GpuKernelObject | CompileError]:
        """The kernels of launches, compiled in one go or found on disk, or why one does not compile."""
        return self.backend.compile_all([site.module for site in sites], self.target)

    def compile_missing(self, sites: Sequence[Site]) -> None:
        """Compiles the kernels that are new, all in one go, and loads them. Raises CompileError."""
        for refusal in self.load_missing(sites):
            if refusal is not None:
                raise refusal

    def load_missing(self, sites: Sequence[Site]) -> list[CompileError | None]:
        """The same; gives, for each site, why its kernel does not compile, None where it does."""
        driver = self.require_driver()
        keys = [(id(site.lowered), site.divisors) for site in sites]
        missing = {
            key: site for key, site in zip(keys, sites, strict=True) if site.divisors not in site.lowered.kernels
        }
        refused: dict[tuple[int, Divisors], CompileError] = {}
        made = self.objects(list(missing.values())) if missing else []
        for (key, site), kernel in zip(missing.items(), made, strict=True):
            if isinstance(kernel, CompileError):
                refused[key] = kernel
            else:
                site.lowered.kernels[site.divisors] = driver.load(kernel)
        return [refused.get(key) for key in keys]


def _bucketed(extents: Mapping[str, int]) -> Mapping[str, int]:
    """The largest extents of the bucket that these are in; head sizes as they are, which decide what code is made."""
    return {
        axis: extent if extent <= 1 or axis in HEADS else 1 << (extent - 1).bit_length()
        for axis, extent in extents.items()
    }
