"""Timed plans of GPUs: the launches of a plan, of kernels that time their tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.compiler.bind.launches import AnyLaunch, Launch, Memory, kernel_launches
from tessera.compiler.bind.library_calls import library_call
from tessera.compiler.device.gpu_kernels import GpuKernelCompiler
from tessera.compiler.device.gpu_launches import Site
from tessera.errors import CompileError, MemoryLimitError
from tessera.ir.grid import steps_of
from tessera.lazy.devices import INTERPRETER
from tessera.profiling.tiles.device_tiles import DeviceTiles
from tessera.runtime.device import Driver
from tessera.runtime.gpu_timed_plan import TimedDevicePlan, TimedStep, tile_memory


class DeviceTiming:
    """Makes timed plans of one GPU. `made` hears of each, `refused` why a kernel of one does not time its tiles."""

    def __init__(
        self,
        compiler: GpuKernelCompiler,
        made: Callable[[TimedDevicePlan], None],
        refused: Callable[[str], None],
    ) -> None:
        self._compiler, self._made, self._refused = compiler, made, refused

    def plan(
        self, launches: Sequence[AnyLaunch], memory: Memory, unaligned: frozenset[int] = frozenset()
    ) -> TimedDevicePlan:
        """The plan that launches timed kernels in order, and the usual ones where a kernel cannot be timed.

        Raises what `GpuKernelCompiler.plan` raises.
        """
        launches = self._compiler.relying_less(launches, unaligned)
        usual = [Site(each, self._compiler.lowered(each.choice), unaligned) for each in kernel_launches(launches)]
        steps = iter(self._steps(usual))
        plan = TimedDevicePlan(
            driver=self._compiler.require_driver(),
            pieces=[next(steps) if isinstance(each, Launch) else library_call(each) for each in launches],
            realigned=lambda slots: self.plan(launches, memory, unaligned | slots),
            **self._compiler.plan_fields(launches, memory, usual),
        )
        self._made(plan)
        return plan

    def _steps(self, usual: Sequence[Site]) -> list[TimedStep]:
        """Launches of timed kernels, as far as these compile and their times fit the memory."""
        timed = [
            Site(site.launch, self._compiler.lowered(site.launch.choice, timed=True), site.unaligned) for site in usual
        ]
        made = [self._step(*each) for each in zip(timed, self._compiler.load_missing(timed), strict=True)]
        self._compiler.compile_missing([site for site, step in zip(usual, made, strict=True) if step is None])
        return [step or TimedStep(site.step()) for site, step in zip(usual, made, strict=True)]

    def _step(self, site: Site, refusal: CompileError | None) -> TimedStep | None:
        driver, tiles = self._compiler.require_driver(), steps_of(site.lowered.module)(site.extents)
        if not tiles:
            return None
        try:
            if refusal is not None:
                raise refusal
            memory = tile_memory(driver, tiles)
        except (CompileError, MemoryLimitError) as error:
            self._refused(f"{site.name} on {driver.name} does not time its tiles: {error.message}")
            return None
        return TimedStep(site.step(memory.memory.address), self._tiles(driver), memory)

    def _tiles(self, driver: Driver) -> DeviceTiles:
        """The interpreter runs one program at a time."""
        cores = 1 if driver.name == INTERPRETER else driver.target.cores
        return DeviceTiles(self._compiler.backend.tick_ns(driver.target), cores)
