"""Plans of a GPU: launches of kernels that a driver has loaded. Kernels are compiled where a plan is made of them, all
that are missing in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from xdsl.dialects.builtin import ModuleOp

from tessera import settings
from tessera.backend.contract import GpuBackend, GpuKernelObject, StaticFacts
from tessera.backend.registry import backend_names, gpu_backend
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, Memory, kernel_launches
from tessera.compiler.bind.library_calls import library_call
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.device.planner import Build, Made, Maker, Operands
from tessera.compiler.device.sites import LARGEST, Lowered, Site
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.memo import Table
from tessera.compiler.process.revision import generator_revision
from tessera.errors import CompileError, MemoryLimitError, UnsupportedTargetError
from tessera.ir.tile.divisors import Divisors
from tessera.ir.tile.grid import programs_of, steps_of
from tessera.lazy.devices import INTERPRETER
from tessera.profiling.tiles.device_tiles import DeviceTiles
from tessera.runtime.devices.device import Driver
from tessera.runtime.plans.gpu_graphs import shared_runner
from tessera.runtime.plans.gpu_library_plan import MixedDevicePlan
from tessera.runtime.plans.gpu_plan import DevicePlan
from tessera.runtime.plans.gpu_timed_plan import TimedDevicePlan, TimedStep, tile_memory
from tessera.scheduling.families.backends import TRITON, backends_for, named_backend
from tessera.scheduling.language.schedule import Schedule
from tessera.system.caching import cached_property
from tessera.target.occupancy import occupancy
from tessera.tuning.measure.workload import GpuLaunch

T = TypeVar("T")

LOWERED: Final = Table[tuple[Subject, Schedule, bool], Lowered]("lowered kernels, and their timed builds")
ALIGNED: Final[frozenset[int]] = frozenset()
"""The slots whose addresses may be anything, where nothing else is known: none."""


class GpuPlanner:
    """Makes plans and candidates of launches for one GPU. Without a `driver`, for one that need not be there, it makes
    no plans.
    """

    largest_axis = LARGEST

    def __init__(self, maker: Maker, backend: GpuBackend, driver: Driver | None) -> None:
        self._maker, self.backend, self.driver = maker, backend, driver
        self.device = "cuda:0" if driver is None else driver.name

    def backend_of(self, schedule: Schedule) -> GpuBackend:
        """What makes code under a schedule. Raises DeviceError for a backend that the device does not have."""
        name = named_backend(schedule)
        return self.backend if name == TRITON else gpu_backend(self.device, name)

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The default, and those that are installed, have code for the GPU, and whose kernels its driver launches."""
        return tuple(name for name in backends_for(self._maker.target) if name == TRITON or self._has(name))

    def _has(self, name: str) -> bool:
        if name not in backend_names(self.device) or not (self.driver is None or self.driver.launches_tiles):
            return False
        try:
            return bool(gpu_backend(self.device, name).version())
        except UnsupportedTargetError:
            return False

    # -- kernels --------------------------------------------------------------------------------------------------

    def kernel(self, choice: Choice, timed: bool = False) -> Lowered:
        """A choice lowered, once, with what was compiled of it; or its `timed` build."""
        subject, schedule = choice.subject, choice.schedule
        known = subject.item.memo.of(LOWERED)
        lowered = known.get((subject, schedule, timed))
        if lowered is None:
            module = self._maker.tile_ir(subject, schedule, timed)
            lowered = known[subject, schedule, timed] = Lowered(module, programs_of(module, self._maker.target))
        return lowered

    def scratch_bytes(self, choice: Choice) -> int:
        """Kernels of GPUs have none but what their compiler spills, which is in their facts."""
        return 0

    def _objects(self, sites: Sequence[Site]) -> list[GpuKernelObject | CompileError]:
        """The kernels of launches, compiled in one go or found on disk, or why one does not compile."""
        return self._by_backend(sites, lambda backend, modules: backend.compile_all(modules, self._maker.target))

    def facts(self, sites: Sequence[Site]) -> list[StaticFacts | CompileError]:
        """What the kernels of launches become, compiled in one go, or why one does not compile."""
        return self._by_backend(sites, lambda backend, modules: backend.facts(modules, self._maker.target))

    def _by_backend(self, sites: Sequence[Site], ask: Callable[[GpuBackend, list[ModuleOp]], list[T]]) -> list[T]:
        """What `ask` finds for each launch of the backend that its schedule names."""
        names = [named_backend(site.launch.schedule) for site in sites]
        found = dict[int, T]()
        for name in dict.fromkeys(names):
            places = [place for place, each in enumerate(names) if each == name]
            backend = self.backend_of(sites[places[0]].launch.schedule)
            found.update(zip(places, ask(backend, [sites[place].module for place in places]), strict=True))
        return [found[place] for place in range(len(sites))]

    def _compile_missing(self, sites: Sequence[Site]) -> None:
        """Compiles the kernels that are new, all in one go, and loads them. Raises CompileError."""
        for refusal in self._load_missing(sites):
            if refusal is not None:
                raise refusal

    def _load_missing(self, sites: Sequence[Site]) -> list[CompileError | None]:
        """The same; gives, for each site, why its kernel does not compile, None where it does."""
        driver = self._required_driver()
        keys = [site.key for site in sites]
        missing = {
            key: site for key, site in zip(keys, sites, strict=True) if site.divisors not in site.lowered.kernels
        }
        refused: dict[tuple[int, Divisors], CompileError] = {}
        made = self._objects(list(missing.values())) if missing else []
        for (key, site), kernel in zip(missing.items(), made, strict=True):
            if isinstance(kernel, CompileError):
                refused[key] = kernel
            else:
                site.lowered.kernels[site.divisors] = driver.load(kernel)
        return [refused.get(key) for key in keys]

    # -- plans ----------------------------------------------------------------------------------------------------

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> DevicePlan:
        """The plan that launches the kernels in order.

        Raises UnsupportedTargetError where no device was given, or a grid would be too large, and CompileError for what
        the device's compiler refuses.
        """
        return self._plan(list(launches), memory, ALIGNED)

    def _plan(self, launches: Sequence[AnyLaunch], memory: Memory, unaligned: frozenset[int]) -> DevicePlan:
        driver = self._required_driver()
        launches, sites = self._sites(launches, unaligned)
        self._compile_missing(sites)
        steps = [site.step() for site in sites]
        fields = self._fields(launches, memory, sites)
        fields["realigned"] = lambda slots: self._plan(launches, memory, unaligned | slots)
        if len(sites) < len(launches):
            following = iter(steps)
            pieces = [next(following) if isinstance(launch, Launch) else library_call(launch) for launch in launches]
            return MixedDevicePlan(driver=driver, pieces=pieces, **fields)
        kernels = [step.kernel for step in steps]
        is_shared = bool(kernels) and settings.current().shape_buckets
        runner = shared_runner(driver, kernels) if is_shared else None
        return DevicePlan(driver=driver, steps=steps, runner=runner, **fields)

    def _sites(
        self, launches: Sequence[AnyLaunch], unaligned: frozenset[int]
    ) -> tuple[Sequence[AnyLaunch], list[Site]]:
        """The launches, under schedules that do not rely on the addresses of some slots, and those of kernels."""
        if unaligned:
            launches = [
                self._maker.without_addresses(launch, unaligned) if isinstance(launch, Launch) else launch
                for launch in launches
            ]
        return launches, [Site(launch, self.kernel(launch.choice), unaligned) for launch in kernel_launches(launches)]

    def _required_driver(self) -> Driver:
        """The driver. Raises UnsupportedTargetError where no device was given."""
        if self.driver is None:
            name = self._maker.target.name
            raise UnsupportedTargetError(f"kernels for {name} are compiled here, and launched nowhere")
        return self.driver

    def _fields(self, launches: Sequence[AnyLaunch], memory: Memory, sites: Sequence[Site]) -> dict[str, Any]:
        """What plans of these launches, whose kernels are `sites`, are told beside their steps."""
        return {
            "slots": memory.slots,
            "results": memory.results,
            "outputs": memory.outputs,
            "arena_bytes": memory.arena_bytes,
            "facts": facts_of(launches),
            "aligned": sorted(set().union(*[site.aligned_slots for site in sites])),
        }

    # -- timed plans ----------------------------------------------------------------------------------------------

    def timed_plan(
        self, launches: Sequence[AnyLaunch], memory: Memory, made: Made, refused: Callable[[str], None]
    ) -> TimedDevicePlan:
        """The plan that launches timed kernels in order, and the usual ones where a kernel cannot be timed; `made`
        hears of it again for leaves that lie otherwise. Raises what `plan` raises.
        """
        return self._timed_plan(list(launches), memory, made, refused, ALIGNED)

    def _timed_plan(
        self,
        launches: Sequence[AnyLaunch],
        memory: Memory,
        made: Made,
        refused: Callable[[str], None],
        unaligned: frozenset[int],
    ) -> TimedDevicePlan:
        launches, usual = self._sites(launches, unaligned)
        steps = iter(self._timed_steps(usual, refused))
        plan = TimedDevicePlan(
            driver=self._required_driver(),
            pieces=[next(steps) if isinstance(each, Launch) else library_call(each) for each in launches],
            realigned=lambda slots: self._timed_plan(launches, memory, made, refused, unaligned | slots),
            **self._fields(launches, memory, usual),
        )
        made(plan, plan.tiles)
        return plan

    def _timed_steps(self, usual: Sequence[Site], refused: Callable[[str], None]) -> list[TimedStep]:
        """Launches of timed kernels, as far as these compile and their times fit the memory."""
        timed = [Site(site.launch, self.kernel(site.launch.choice, timed=True), site.unaligned) for site in usual]
        steps = [
            self._timed_step(site, refusal, refused)
            for site, refusal in zip(timed, self._load_missing(timed), strict=True)
        ]
        self._compile_missing([site for site, step in zip(usual, steps, strict=True) if step is None])
        return [step or TimedStep(site.step()) for site, step in zip(usual, steps, strict=True)]

    def _timed_step(self, site: Site, refusal: CompileError | None, refused: Callable[[str], None]) -> TimedStep | None:
        driver, tiles = self._required_driver(), steps_of(site.lowered.module)(site.extents)
        if not tiles:
            return None
        try:
            if refusal is not None:
                raise refusal
            memory = tile_memory(driver, tiles)
        except (CompileError, MemoryLimitError) as error:
            refused(f"{site.name} on {driver.name} does not time its tiles: {error.message}")
            return None
        return TimedStep(site.step(memory.memory.address), self._tiles(driver), memory)

    def _tiles(self, driver: Driver) -> DeviceTiles:
        """The interpreter runs one program at a time."""
        cores = 1 if driver.name == INTERPRETER else driver.target.cores
        return DeviceTiles(self.backend.tick_ns(driver.target), cores)

    # -- candidates of a tuning -----------------------------------------------------------------------------------

    @property
    def generator(self) -> str:
        """The revision of the sources, and the versions of the compilers, which make code."""
        others = [gpu_backend(self.device, name).version() for name in self.backends[1:]]
        return " ".join([f"{generator_revision()} Triton {self.backend.version()}", *others])

    def build(self, launch: Launch) -> GpuBuild:
        """A launch of a candidate. Compiles nothing."""
        return GpuBuild(launch, self.kernel(launch.choice), ALIGNED)

    def compiled(self, builds: Sequence[Build]) -> list[Any]:
        """The kernels, compiled in one go; those that spill registers are refused."""
        sites = [build for build in builds if isinstance(build, GpuBuild)]
        return [_refused(*each) for each in zip(sites, self._objects(sites), strict=True)]

    def occupancy_limit(self, kernels: Sequence[GpuKernelObject]) -> float | None:
        """The least occupancy that registers and shared memory leave to one of the kernels."""
        limits = self._maker.target.gpu
        if limits is None:
            return None
        held = [
            occupancy(limits, max(made.threads // limits.warp_size, 1), made.registers, made.shared_bytes)
            for made in kernels
        ]
        return min((each.fraction for each in held), default=None)

    def adopt(self, launch: Launch) -> None:
        """What was compiled is on disk."""

    def abort(self) -> None:
        """Triton's processes end by themselves."""


class GpuBuild(Site):
    """A launch of a candidate on a GPU."""

    def launched(self, kernel: GpuKernelObject, operands: Operands) -> GpuLaunch:
        """A launch over places of the address table; scalars are given as they are."""
        arguments = self.arguments(
            kernel.parameters,
            lambda view, kind: operands.scalar(view.dtype) if view.is_scalar else operands.place(view),
        )
        return GpuLaunch(kernel.to_bytes(), self.grid, tuple(arguments))


def _refused(site: Site, made: GpuKernelObject | CompileError) -> GpuKernelObject | CompileError:
    """The kernel of a candidate, but for one that spills."""
    if isinstance(made, CompileError) or not made.spill_bytes:
        return made
    return CompileError(f"{site.name} spills {made.spill_bytes} bytes a thread")
