"""The device "interpreter": GPU kernels on CPU memory, run by Triton's interpreter. Synchronous, and slow."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tessera import settings
from tessera import target as targets
from tessera.backend.contract import GpuKernelObject
from tessera.backend.interpreter.interpreted import InterpretedKernel, interpreter
from tessera.errors import UnsupportedTargetError
from tessera.lazy.devices import INTERPRETER
from tessera.runtime.devices.device import Driver, Graph, Grid, LaunchOf, Loaded
from tessera.runtime.memory import buffers
from tessera.runtime.memory.buffers import Buffer
from tessera.target import Target


@dataclass(frozen=True)
class HostMemory:
    """Memory of the CPU's allocator."""

    address: int
    nbytes: int
    owner: Buffer


class InterpreterDriver:
    """The driver of the device "interpreter", which stands for the GPU `target`."""

    def __init__(self, target: Target) -> None:
        self.name = INTERPRETER
        self.target = target
        self.launches_tiles = False
        self._lock = threading.Lock()
        self._loaded: dict[GpuKernelObject, InterpretedKernel] = {}

    def allocate(self, nbytes: int) -> HostMemory:
        """Memory of the CPU. Raises MemoryLimitError as the allocator does."""
        buffer = buffers.allocate(nbytes)
        return HostMemory(buffer.address, nbytes, buffer)

    def load(self, kernel: GpuKernelObject) -> Loaded:
        """The kernel as Python functions. Raises UnsupportedTargetError where it was printed for another GPU."""
        if kernel.arch != self.target.arch:
            raise UnsupportedTargetError(f"{kernel.entry} is a kernel for {kernel.arch}, not {self.target.arch}")
        with self._lock:
            if kernel not in self._loaded:
                self._loaded[kernel] = InterpretedKernel(kernel)
            return self._loaded[kernel]

    def launch(self, kernel: Loaded, grid: Grid, arguments: Sequence[int | float], stream: int) -> None:
        """Runs a kernel, and returns when it is done."""
        assert isinstance(kernel, InterpretedKernel)
        kernel.run(grid, arguments)

    def stream(self) -> int:
        """There is one, and nothing waits in it."""
        return 0

    def is_capturing(self) -> bool:
        """Nothing is put off."""
        return False

    def synchronize(self, stream: int) -> None:
        """Nothing is ever pending."""

    def record(self, launches: Sequence[LaunchOf]) -> Graph | None:
        """None: there are no graphs."""
        return None


def open_device(number: int) -> Driver:
    """The interpreter as the GPU that the setting `interpreter_target` names.

    Raises UnsupportedTargetError without Triton, or where there is no such GPU.
    """
    interpreter()
    return InterpreterDriver(targets.gpu(settings.current().interpreter_target))
