"""A device that records what it is asked for: no memory behind its addresses, no kernel ever runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera import target
from tessera.backend.contract import GpuKernelObject, LaunchFacts
from tessera.errors import MemoryLimitError
from tessera.runtime.devices.device import Grid, LaunchOf, Loaded

Numbers = tuple[int | float, ...]


def kernel(name: str) -> GpuKernelObject:
    """A kernel object without code."""
    return GpuKernelObject(b"", name, "", "sm_90", 128, 0, (), LaunchFacts(), "3.6.0", 0, 0)


@dataclass(frozen=True)
class FakeMemory:
    """Bytes that are not there."""

    address: int
    nbytes: int
    owner: object = field(default_factory=object)


@dataclass(frozen=True, eq=False)
class FakeLoaded:
    """A kernel that is loaded nowhere."""

    kernel: GpuKernelObject


class FakeGraph:
    """Holds what it was given."""

    def __init__(self, driver: FakeDriver, launches: Sequence[LaunchOf]) -> None:
        self.driver, self.fails = driver, False
        self.nodes = [(launch.grid, tuple(launch.arguments)) for launch in launches]

    def launch(self, stream: int) -> None:
        """Notes the launch with all that the graph holds then."""
        self.driver.log.append(("graph", stream, tuple(self.nodes)))

    def update(self, index: int, grid: Grid, arguments: Sequence[int | float]) -> None:
        """Changes a node, and notes it. Raises RuntimeError while `fails` is set."""
        if self.fails:
            raise RuntimeError("planted")
        self.driver.log.append(("update", index))
        self.nodes[index] = (grid, tuple(arguments))


class FakeDriver:
    """Notes every call in `log`. Addresses are the multiples of 512 from 4096 on; `limit` bytes can be allocated."""

    def __init__(self, has_graphs: bool = True, limit: int = 1 << 40) -> None:
        self.name, self.target = "cuda:0", target.gpu("sm90")
        self.launches_tiles = False
        self.has_graphs, self.free = has_graphs, limit
        self.log: list[tuple[Any, ...]] = []
        self.allocated: list[int] = []
        self.graphs: list[FakeGraph] = []
        self.current_stream = 7
        self.capturing = False
        self.reused: list[int] = []
        """Addresses to give out next, as a caching allocator would."""
        self._next = 4096

    def allocate(self, nbytes: int) -> FakeMemory:
        """The next address."""
        if nbytes > self.free:
            raise MemoryLimitError(f"{nbytes} bytes were requested, {self.free} are free")
        self.allocated.append(nbytes)
        if self.reused:
            return FakeMemory(self.reused.pop(0), nbytes)
        address, self._next = self._next, self._next + max(512, -(-nbytes // 512) * 512)
        return FakeMemory(address, nbytes)

    def load(self, kernel: GpuKernelObject) -> Loaded:
        """Loads nothing."""
        self.log.append(("load", kernel.entry))
        return FakeLoaded(kernel)

    def launch(self, kernel: Loaded, grid: Grid, arguments: Sequence[int | float], stream: int) -> None:
        """Notes the launch."""
        self.log.append(("launch", kernel.kernel.entry, grid, tuple(arguments), stream))

    def stream(self) -> int:
        """The handle that was set."""
        return self.current_stream

    def is_capturing(self) -> bool:
        """As it was set."""
        return self.capturing

    def synchronize(self, stream: int) -> None:
        """Notes the wait."""
        self.log.append(("synchronize", stream))

    def record(self, launches: Sequence[LaunchOf]) -> FakeGraph | None:
        """A graph, where there are graphs."""
        self.log.append(("record", len(launches)))
        if not self.has_graphs:
            return None
        self.graphs.append(FakeGraph(self, launches))
        return self.graphs[-1]
