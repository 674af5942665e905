"""Plans of GPUs whose kernels time their tiles: launched one by one and waited for, so that what they wrote is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from tessera.backend.tile_times import RECORD_WORDS
from tessera.lazy.devices import is_cpu_memory
from tessera.lazy.leaves.leaf import Leaf
from tessera.profiling.recording import instrumentation
from tessera.profiling.recording.device_kernels import Measured, PlanRun
from tessera.profiling.tiles.device_tiles import DeviceTiles
from tessera.runtime.devices.device import DeviceMemory, Driver
from tessera.runtime.libraries.library import LibraryOperand, tensor_at
from tessera.runtime.plans.gpu_graphs import Table
from tessera.runtime.plans.gpu_library_plan import DeviceCall
from tessera.runtime.plans.gpu_plan import DevicePlan, DeviceStep
from tessera.system import forks

WORD_BYTES: Final = 8


class TileMemory(NamedTuple):
    """Where a launch's tiles write, of which there are so many."""

    memory: DeviceMemory
    tiles: int

    def read(self, device: str) -> NDArray[numpy.int64]:
        """What they wrote: a row for each."""
        shape = (self.tiles, RECORD_WORDS)
        written = tensor_at(self.memory.address, LibraryOperand(0, 0, torch.int64, shape, (RECORD_WORDS, 1)), device)
        words: NDArray[numpy.int64] = written.cpu().numpy()
        return words


def tile_memory(driver: Driver, tiles: int) -> TileMemory:
    """Memory for so many tiles. Raises MemoryLimitError."""
    return TileMemory(driver.allocate(tiles * RECORD_WORDS * WORD_BYTES), tiles)


class TimedStep(NamedTuple):
    """A launch with its tiles and their memory; None for both where its kernel does not time them."""

    step: DeviceStep
    tiles: DeviceTiles | None = None
    memory: TileMemory | None = None


class TimedDevicePlan(DevicePlan):
    """A `DevicePlan` that collects, after each call, what the tiles of its kernels wrote. Sessions get its kernels with
    the times of the device, from the first tile to the last, laid out from the instant of the launch. Calls take turns.
    """

    __slots__ = ("_pieces", "_turn")

    def __init__(self, *, driver: Driver, pieces: Sequence[TimedStep | DeviceCall], **fields: Any) -> None:
        """`pieces` are launches and calls of libraries in order; `fields` the other parameters of `DevicePlan`."""
        steps = [piece.step for piece in pieces if isinstance(piece, TimedStep)]
        super().__init__(driver=driver, steps=steps, **fields)
        self._pieces = tuple(pieces)
        self._turn = forks.lock()

    @property
    def tiles(self) -> list[DeviceTiles | None]:
        """Of each launch and call."""
        return [piece.tiles if isinstance(piece, TimedStep) else None for piece in self._pieces]

    def _enqueue(self, leaves: Sequence[Leaf], results: Sequence[int]) -> None:
        arena, table = self._table(leaves, results)
        plan = self._serving(table)
        with plan._turn:
            plan._run(table)
        del arena  # waited for above

    def _run(self, table: Table) -> None:
        stream, launched_ns = self.driver.stream(), time.monotonic_ns()
        for piece in self._pieces:
            if isinstance(piece, DeviceCall):
                piece.run(table, self.driver.name)
            else:
                self.driver.launch(*piece.step.launch(table), stream)
        if self.driver.is_capturing():  # what runs later, in a graph of the program's, nobody waits for here
            instrumentation.note_unmeasured(self.driver.name, len(self.steps))
            return
        self.driver.synchronize(stream)
        run = PlanRun(self.number, len(self.steps), self.driver.name, threading.get_ident(), launched_ns)
        instrumentation.note_unmeasured(self.driver.name, len(self.steps), [Measured(run, self._collect(run))])

    def _collect(self, run: PlanRun) -> NDArray[numpy.int64]:
        """What the tiles of a call say of its kernels, as native records."""
        device = 0 if is_cpu_memory(run.device) else int(run.device.rpartition(":")[2]) + 1
        found = []
        for number, piece in enumerate(self._pieces):
            if isinstance(piece, TimedStep) and piece.tiles is not None and piece.memory is not None:
                start, end = piece.tiles.collect(piece.memory.read(run.device))
                found.append((run.launched_ns, start, end, run.plan, number, piece.tiles.workers, run.thread, device))
        rows = numpy.array(found, numpy.int64).reshape(-1, 8)
        if len(rows):
            rows[:, 1:3] += run.launched_ns - rows[:, 1].min()
        return rows
