"""Running candidates on a GPU inside the worker, by the device's driver, as plans do.

A sample is one launch of a graph that holds the candidate several times, between two events of the device: what the
host takes to launch is no part of it. Where the workload asks for "stream" launches, or the device has no graphs, it is
the same launches one by one. On a cold L2 cache there is one call, and other data fills the cache before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from tessera.backend.contract import GpuKernelObject
from tessera.errors import CacheFormatError
from tessera.lazy.devices import torch_device
from tessera.runtime.devices.device import Driver, Graph, LaunchOf
from tessera.tuning.measure.conditions import LaunchMode
from tessera.tuning.measure.execution import Bench, Candidate
from tessera.tuning.measure.protocol import Sample
from tessera.tuning.measure.workload import (
    GpuLaunch,
    Launches,
    OperandSpec,
    PlacedOperand,
    SlotAddress,
    Workload,
    materialize,
)

_MOST_LAUNCHES: Final = 1000
"""Launches in the graph of one sample."""
_NEAR: Final = 1.5
"""A graph serves for numbers of calls up to this factor from its own: making one takes longer than a sample."""


@runtime_checkable
class TimingDriver(Protocol):
    """A driver whose device has a clock of its own."""

    def elapsed_s(self, run: Callable[[], None], stream: int) -> float:
        """Seconds that the device takes for what `run` enqueues on a stream, once it has done all that went before."""

    def fill_cache(self, stream: int) -> None:
        """Enqueues filling the device's caches with other data."""


class DeviceCandidate:
    """A loaded candidate: its launches, and a graph of some of them in a row once it is timed."""

    def __init__(
        self, driver: Driver, launches: Sequence[LaunchOf], temporaries: Sequence[PlacedOperand], graphs: bool = True
    ) -> None:
        self._driver = driver
        self._launches = list(launches)
        self.temporaries = temporaries
        self._graphs = graphs
        self._graph: Graph | None = None
        self._calls = 0

    @property
    def mode(self) -> LaunchMode:
        """How it is launched when it is timed: "stream" also where the device has no graphs."""
        return "stream" if self._graph is None else "graph"

    def run(self) -> None:
        """Enqueues one execution of all its kernels."""
        stream = self._driver.stream()
        for launch in self._launches:
            self._driver.launch(launch.kernel, launch.grid, launch.arguments, stream)

    def repeated(self, calls: int) -> tuple[Callable[[], None], int]:
        """(what enqueues about `calls` executions, how many it enqueues): one graph where the device has graphs."""
        calls = max(min(calls, _MOST_LAUNCHES // max(len(self._launches), 1)), 1)
        if not self._calls / _NEAR < calls < self._calls * _NEAR:
            self._calls = calls
            self._graph = self._driver.record(self._launches * calls) if self._graphs else None
            self._run_line()  # the first launch of a graph uploads it
        return self._run_line, self._calls

    def _run_line(self) -> None:
        if self._graph is not None:
            self._graph.launch(self._driver.stream())
            return
        for _ in range(self._calls):
            self.run()


class DeviceBench(Bench):
    """Candidates on the device of a driver."""

    def __init__(self, workload: Workload, driver: Driver) -> None:
        self._driver = driver
        super().__init__(workload)

    def materialize(self, spec: OperandSpec, ours: bool = False) -> PlacedOperand:
        """The operand in the device's memory: the same bits as on the CPU."""
        return materialize(spec).to(torch_device(self._driver.name))

    def load(self, launches: Launches, temporaries: Sequence[OperandSpec]) -> DeviceCandidate:
        """A candidate that is ready to run.

        Raises CacheFormatError for kernels that are none of a GPU, and what the driver raises of those that are.
        """
        scratch = [self.materialize(spec) for spec in temporaries]
        table = self.addresses(scratch)
        loaded = []
        for launch in launches:
            if not isinstance(launch, GpuLaunch):
                raise CacheFormatError(f"a launch on a CPU cannot be measured on {self._driver.name}")
            kernel = self._driver.load(GpuKernelObject.from_bytes(launch.kernel))
            arguments = [
                table[value.slot] + value.offset_bytes if isinstance(value, SlotAddress) else value
                for value in launch.arguments
            ]
            loaded.append(LaunchOf(kernel, launch.grid, arguments))
        return DeviceCandidate(self._driver, loaded, scratch, graphs=self.workload.launch != "stream")

    def wait(self) -> None:
        """Returns when the device is done. Raises what it reports, DeviceFaultError for one."""
        self._driver.synchronize(self._driver.stream())

    def time(self, candidate: Candidate, seconds: float, estimate_s: float | None) -> Sample:
        """Times a candidate on a warm or a filled L2 cache, as the workload asks."""
        assert isinstance(candidate, DeviceCandidate)
        cold = self.workload.cache == "cold"
        if estimate_s is None:
            run, calls = candidate.repeated(1)
            estimate_s = max(self._elapsed_s(run, cold) / calls, 1e-7)
        run, calls = candidate.repeated(1 if cold else round(seconds / estimate_s))
        return Sample(self._elapsed_s(run, cold) / calls, calls, contended=False, launch=candidate.mode)

    def _elapsed_s(self, run: Callable[[], None], cold: bool) -> float:
        driver, stream = self._driver, self._driver.stream()
        if isinstance(driver, TimingDriver):
            if cold:
                driver.fill_cache(stream)
            return driver.elapsed_s(run, stream)
        self.wait()
        begin = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - begin
