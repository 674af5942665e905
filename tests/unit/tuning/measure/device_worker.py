"""A worker whose device is a fake: kernels are known by their entry, and some of them take the device down.

``python -m tests.unit.tuning.measure.device_worker`` serves as `tessera.tuning.measure.worker` does, with this device
in the place of "interpreter".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera import target
from tessera.backend.contract import GpuKernelObject
from tessera.errors import MemoryLimitError, UnsupportedTargetError
from tessera.runtime.cuda.results import failure
from tessera.runtime.devices.device import DeviceMemory, Grid, LaunchOf, Loaded, use_driver
from tessera.tuning.measure import worker

ILLEGAL_ADDRESS = 700
SECONDS = {"double": 2e-6, "double_slowly": 9e-6}
"""What the device says that a launch takes."""
FLUSH_S = 1e-3


class LoadedFake(NamedTuple):
    kernel: GpuKernelObject


class FakeGraph:
    def __init__(self, device: FakeDevice, launches: Sequence[LaunchOf]) -> None:
        self._device, self._launches = device, launches

    def launch(self, stream: int) -> None:
        for launch in self._launches:
            self._device.launch(launch.kernel, launch.grid, launch.arguments, stream)

    def update(self, index: int, grid: Grid, arguments: Sequence[int | float]) -> None:
        raise NotImplementedError


class FakeDevice:
    """Doubles vectors of fp32. Work happens at `synchronize`, as faults do on a GPU."""

    name = "interpreter"
    target = target.gpu("h200")
    launches_tiles = False

    def __init__(self) -> None:
        self._enqueued: list[tuple[str, Sequence[int | float]]] = []
        self._launched = 0
        self._lost = False
        self.cold = False

    def allocate(self, nbytes: int) -> DeviceMemory:
        raise NotImplementedError

    def load(self, kernel: GpuKernelObject) -> LoadedFake:
        if kernel.entry == "large":
            raise MemoryLimitError("no memory for this kernel")
        if kernel.arch != "sm_90":
            raise UnsupportedTargetError(f"compiled for {kernel.arch}")
        return LoadedFake(kernel)

    def launch(self, kernel: Loaded, grid: Grid, arguments: Sequence[int | float], stream: int) -> None:
        self._require_life()
        self._enqueued.append((kernel.kernel.entry, arguments))

    def stream(self) -> int:
        return 3

    def is_capturing(self) -> bool:
        return False

    def synchronize(self, stream: int) -> None:
        self._require_life()
        for entry, (source, result, elements) in self._enqueued:
            self._launched += 1
            self._lost |= entry == "fault" or (entry == "fault_later" and self._launched > 1)
            self._require_life()
            factor = 3 if entry == "triple" else 2
            given = (ctypes.c_float * int(elements)).from_address(int(source))
            (ctypes.c_float * int(elements)).from_address(int(result))[:] = [factor * value for value in given]
        self._enqueued.clear()

    def record(self, launches: Sequence[LaunchOf]) -> FakeGraph:
        return FakeGraph(self, launches)

    def elapsed_s(self, run: Callable[[], Any], stream: int) -> float:
        self.synchronize(stream)
        run()
        seconds = sum(SECONDS.get(entry, 1e-6) for entry, _ in self._enqueued) + (FLUSH_S if self.cold else 0)
        self.synchronize(stream)
        self.cold = False
        return seconds

    def fill_cache(self, stream: int) -> None:
        self.cold = True

    def _require_life(self) -> None:
        if self._lost:
            raise failure(ILLEGAL_ADDRESS, "waiting for a stream")


if __name__ == "__main__":
    use_driver("interpreter", FakeDevice())
    worker.main()
