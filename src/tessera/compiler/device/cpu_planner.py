"""Plans of a CPU: compiled kernels as steps of one native call, and candidates, which other processes compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from tessera.backend.contract import CpuBackend, KernelObject, LoadedKernel
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, LibraryLaunch, Memory
from tessera.compiler.bind.library_calls import library_step
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.spectral_steps import spectral_step
from tessera.compiler.device.planner import Build, Made, Maker, Operands
from tessera.compiler.device.recipes import recipe
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.memo import Table
from tessera.compiler.process.pool import CompileJob, CompilePool, compile_pool
from tessera.compiler.process.revision import generator_revision
from tessera.lazy.devices import CPU
from tessera.profiling.tiles.tiles import TileTimes, collecting
from tessera.runtime.libraries.library import raising
from tessera.runtime.plans import native
from tessera.runtime.plans.frames import Step
from tessera.runtime.plans.plan import BoundPlan
from tessera.scheduling.binding.axes import UNLIMITED
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.workload import KernelCall


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


class CpuPlanner:
    """Makes plans and candidates of launches for one CPU."""

    device = CPU
    largest_axis = UNLIMITED

    def __init__(self, maker: Maker, backend: CpuBackend) -> None:
        self._maker, self.backend = maker, backend
        self.backends: tuple[str, ...] = ()
        self._codes: WeakValueDictionary[str, Code] = WeakValueDictionary()
        self._pool: CompilePool | None = None

    def backend_of(self, schedule: Schedule) -> CpuBackend:
        """The one that there is."""
        return self.backend

    # -- kernels --------------------------------------------------------------------------------------------------

    def kernel(self, choice: Choice) -> Kernel:
        """The kernel of a choice, from memory, from disk, or compiled now."""
        subject, schedule = choice.subject, choice.schedule
        known = subject.item.memo.of(KERNELS)
        kernel = known.get((subject, schedule))
        if kernel is None:
            kernel = known[subject, schedule] = Kernel(subject, schedule, self._code(subject, schedule))
        return kernel

    def has_kernel(self, choice: Choice) -> bool:
        """Whether the kernel of a choice is in memory."""
        return (choice.subject, choice.schedule) in choice.subject.item.memo.of(KERNELS)

    def timed(self, choice: Choice) -> Kernel:
        """The kernel of a choice as a build of its own that times its tiles, and is kept by the caller."""
        return Kernel(choice.subject, choice.schedule, self._code(choice.subject, choice.schedule, timed=True))

    def scratch_bytes(self, choice: Choice) -> int:
        """The scratch memory of all workers of a choice."""
        return choice.workers * self.kernel(choice).code.workspace_bytes

    def _code(self, subject: Subject, schedule: Schedule, timed: bool = False) -> Code:
        target = subject.target
        key = recipe(subject.spec, schedule, target, self.backend.version(), timed)
        code = self._codes.get(key)
        if code is None:
            stored = self.backend.stored(key, lambda: self._maker.tile_ir(subject, schedule, timed), target)
            code = self._codes[key] = Code(self.backend.load(stored), stored.workspace_bytes)
        return code

    # -- plans ----------------------------------------------------------------------------------------------------

    def plan(self, launches: Sequence[AnyLaunch], memory: Memory) -> BoundPlan:
        """One native call that runs the launches in order, over one address table."""
        return self._plan_of([self._step(launch, self.kernel) for launch in launches], launches, memory)

    def timed_plan(
        self, launches: Sequence[AnyLaunch], memory: Memory, made: Made, refused: Callable[[str], None]
    ) -> BoundPlan:
        """One native call whose kernels time their tiles; all of them do."""
        steps: list[Step] = []
        tiles: list[TileTimes | None] = []
        for launch in launches:
            step = self._step(launch, self.timed)
            times = TileTimes(step.workers) if isinstance(launch, Launch) else None
            if times is not None:
                step = step._replace(descriptors=(*step.descriptors, times.address))
            steps.append(step)
            tiles.append(times)
        written = [times for times in tiles if times is not None]
        plan = self._plan_of(steps, launches, memory, lambda run: collecting(run, written))
        made(plan, tiles)
        return plan

    def _plan_of(
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
            facts=facts_of(launches, self._maker.traffic),
            derived=memory.derived,
            call=run if around is None else around(run or native.driver().run),
        )

    def _step(self, launch: AnyLaunch, kernel_of: Callable[[Choice], Kernel]) -> Step:
        """The step of a launch, of a kernel that `kernel_of` gives."""
        if isinstance(launch, LibraryLaunch):
            return call_step(launch)
        descriptors: list[int] = []
        for view, words in launch.call.arguments:
            descriptors.append(view.storage.slot)
            if not view.is_scalar:
                descriptors.append(view.storage.offset + view.offset_bytes)
                descriptors += words
        code = kernel_of(launch.choice).code
        return Step(code.loaded, tuple(descriptors), launch.choice.workers, code.workspace_bytes)

    # -- candidates of a tuning -----------------------------------------------------------------------------------

    @property
    def generator(self) -> str:
        """The revision of the sources that make code."""
        return generator_revision()

    def build(self, launch: Launch) -> CpuBuild:
        """A launch of a candidate. Compiles nothing."""
        spec, schedule, target = launch.subject.spec, launch.schedule, launch.subject.target
        return CpuBuild(
            launch, recipe(spec, schedule, target, self.backend.version()), CompileJob(spec, schedule, target)
        )

    def compiled(self, builds: Sequence[Build]) -> list[Any]:
        """The kernels, compiled in processes beside this one."""
        self._pool = compile_pool()
        return [*self._pool.objects([build.job for build in builds if isinstance(build, CpuBuild)])]

    def occupancy_limit(self, kernels: Sequence[Any]) -> float | None:
        """A core runs one worker at a time."""
        return None

    def adopt(self, launch: Launch) -> None:
        """Makes the code of a winner in this process, and keeps it on disk."""
        self.kernel(launch.choice)

    def abort(self) -> None:
        """Ends what the processes are compiling."""
        if self._pool is not None:
            self._pool.abort()


@dataclass(frozen=True)
class CpuBuild:
    """A launch of a candidate on a CPU; `key` is the recipe of its code."""

    launch: Launch
    key: str
    job: CompileJob

    def launched(self, kernel: KernelObject, operands: Operands) -> KernelCall:
        """A launch over the address table."""
        descriptors: list[int] = []
        for view, words in self.launch.call.arguments:
            place = operands.place(view)
            descriptors += [place.slot] if view.is_scalar else [*place, *words]
        return KernelCall(kernel.to_bytes(), tuple(descriptors), self.launch.choice.workers)


def call_step(launch: LibraryLaunch) -> Step:
    """The step of a call of a library, native where there is a kernel for it."""
    native_step = spectral_step(launch)
    return library_step(launch) if native_step is None else native_step
