"""When launches become graphs, and what of a graph has to change from call to call.

The first call of a plan launches kernel by kernel, since many plans run once. From the second on (setting
`cuda_graphs`) the device holds the launches as one graph: a call with the addresses of the last one is a single native
call, and other addresses change those launches only that use them. While the program captures a graph of its own it
gets the launches one by one, since what a captured graph becomes when it is updated later is not ours to say. Plans of
the same kernels in the same order may share one runner (`shared_runner`, setting `shape_buckets`): then the graph also
takes their grids and extents in turn.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from tessera import settings
from tessera.runtime.devices.device import Driver, Graph, Grid, LaunchOf, Loaded

Table: TypeAlias = tuple[int, ...]
"""The words of one call: an address or a scalar's bits for each slot of the plan."""

AUTO_RECORDS_AT = 2
"""The call at which a graph is recorded under `cuda_graphs="auto"`."""


class HoleLike(Protocol):
    """An argument that is filled from the table."""

    @property
    def slot(self) -> int: ...


class StepLike(Protocol):
    """One launch of a plan; `gpu_plan.DeviceStep` is the one that stands here."""

    @property
    def kernel(self) -> Loaded: ...

    @property
    def holes(self) -> Sequence[HoleLike]: ...

    def launch(self, table: Table) -> LaunchOf:
        """The launch over one table."""


class GraphRunner:
    """Runs the launches of a plan, or of several plans of the same kernels, by the graph policy. Thread-safe.

    `updates` counts the launches of a graph that were changed since it was recorded.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._calls = 0
        self._graph: Graph | None = None
        self._refused = False
        self._plan = -1
        self._table: Table = ()
        self._held: list[tuple[Grid, Sequence[int | float]]] = []
        self.updates = 0

    def repeat(self, plan: int, table: Table, stream: int) -> bool:
        """Launches the graph where it holds exactly this call; False, with nothing done, where it does not."""
        with self._lock:
            if self._graph is None or plan != self._plan or table != self._table or self._driver.is_capturing():
                return False
            self._graph.launch(stream)
            return True

    def run(self, plan: int, steps: Sequence[StepLike], table: Table, stream: int) -> None:
        """Enqueues the launches of plan number `plan` over the memory of one call."""
        with self._lock:
            if self._driver.is_capturing():
                self._launch_each(steps, table, stream)
                return
            self._calls += 1
            if self._graph is None and not self._records():
                self._launch_each(steps, table, stream)
                return
            if self._graph is None:
                launches = [step.launch(table) for step in steps]
                self._graph = self._driver.record(launches)
                if self._graph is None:
                    self._refused = True
                    self._launch_each(steps, table, stream)
                    return
                self._held = [(launch.grid, launch.arguments) for launch in launches]
            elif plan != self._plan or table != self._table:
                self._update(plan, steps, table)
            self._plan, self._table = plan, table
            self._graph.launch(stream)

    def _records(self) -> bool:
        """Whether this call records a graph."""
        mode = settings.current().cuda_graphs
        return not self._refused and (mode == "on" or (mode == "auto" and self._calls >= AUTO_RECORDS_AT))

    def _launch_each(self, steps: Sequence[StepLike], table: Table, stream: int) -> None:
        for step in steps:
            kernel, grid, arguments = step.launch(table)
            self._driver.launch(kernel, grid, arguments, stream)

    def _update(self, plan: int, steps: Sequence[StepLike], table: Table) -> None:
        """Gives the graph those launches that differ from what it holds."""
        assert self._graph is not None
        changed = list(range(len(steps)))
        if plan == self._plan:
            slots = {slot for slot, (old, new) in enumerate(zip(self._table, table, strict=True)) if old != new}
            changed = [index for index, step in enumerate(steps) if any(hole.slot in slots for hole in step.holes)]
        # Should an update fail half-way, the next call compares everything.
        self._plan, self._table = -1, ()
        for index in changed:
            _, grid, arguments = steps[index].launch(table)
            if self._held[index] != (grid, arguments):
                self._graph.update(index, grid, arguments)
                self._held[index] = grid, arguments
                self.updates += 1


_shared: weakref.WeakValueDictionary[tuple[int, ...], SharedRunner] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class SharedRunner(GraphRunner):
    """A runner of several plans, which keeps their kernels alive: they identify it."""

    def __init__(self, driver: Driver, kernels: Sequence[Loaded]) -> None:
        super().__init__(driver)
        self.kernels = tuple(kernels)


def shared_runner(driver: Driver, kernels: Sequence[Loaded]) -> GraphRunner:
    """The runner of all plans on a device that launch these kernels in this order."""
    key = (id(driver), *map(id, kernels))
    with _lock:
        runner = _shared.get(key)
        if runner is None:
            runner = _shared[key] = SharedRunner(driver, kernels)
        return runner
