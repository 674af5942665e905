"""`CudaDriver`: a CUDA device as plans see it (`runtime.device.Driver`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from tessera.backend.contract import GpuKernelObject
from tessera.errors import DeviceError, UnsupportedTargetError
from tessera.runtime.cuda.context import Context
from tessera.runtime.cuda.graphs import CudaGraph
from tessera.runtime.cuda.kernels import CudaKernel, DirectSite
from tessera.runtime.cuda.libcuda import OLDEST_TILE_DRIVER, Libcuda
from tessera.runtime.cuda.memory import DeviceAllocator, DeviceBytes
from tessera.runtime.cuda.parameters import Number
from tessera.runtime.cuda.results import SUCCESS
from tessera.runtime.cuda.streams import Streams
from tessera.runtime.devices.device import Grid, LaunchOf, Loaded
from tessera.target import Target

_FILL_BYTES: Final = 256 << 20
"""Written to fill an L2 cache of unknown size: that of the largest GPU has half of it."""


class CudaDriver:
    """CUDA device number `ordinal`, called `name`. Thread-safe.

    It works in the device's primary context, which torch uses, on torch's memory and on torch's streams. `streams` has
    streams, events and copies.
    """

    def __init__(self, name: str, ordinal: int, target: Target, library: Libcuda, allocator: DeviceAllocator) -> None:
        self.name = name
        self.target = target
        self.launches_tiles = library.driver_version() >= OLDEST_TILE_DRIVER
        self._context = Context(library, ordinal)
        self._library = library
        self._allocator = allocator
        self.streams = Streams(self._context, allocator)
        self._loaded: dict[GpuKernelObject, CudaKernel] = {}
        self._lock = threading.Lock()
        self._filler: DeviceBytes | None = None
        self._launch_kernel = library.function("cuLaunchKernelEx")

    def allocate(self, nbytes: int) -> DeviceBytes:
        """Memory of torch's caching allocator, for work on the current stream.

        Raises MemoryLimitError, which names the bytes requested and those free.
        """
        return self._allocator.allocate(nbytes)

    def load(self, kernel: GpuKernelObject) -> CudaKernel:
        """The kernel, loaded once and remembered.

        Raises UnsupportedTargetError where it was compiled for another GPU, takes more shared memory than this one has,
        or is one of CUDA's tiles and the driver too old.
        """
        with self._lock:
            known = self._loaded.get(kernel)
            if known is None:
                if not runs_on(kernel.arch, self.target.arch):
                    raise UnsupportedTargetError(
                        f"kernel {kernel.entry} was compiled for {kernel.arch}, and {self.name} is another GPU: "
                        f"{self.target.name} ({self.target.arch})",
                        hints=["compile it for this GPU: objects are cached by target"],
                    )
                if kernel.launch.is_tile and not self.launches_tiles:
                    raise UnsupportedTargetError(
                        f"{kernel.entry} is a kernel of CUDA's tiles, which the driver of {self.name} cannot launch",
                        hints=["a driver r580 or newer does", "leave the knob `backend` at 'triton'"],
                    )
                known = CudaKernel(self._context, kernel)
                self._loaded[kernel] = known
            return known

    def launch(self, kernel: Loaded, grid: Grid, arguments: Sequence[Number], stream: int) -> None:
        """Enqueues one launch; a grid without programs launches nothing.

        Raises ArgumentError for arguments that the kernel does not take, and what the driver reports: of earlier
        work as well.
        """
        loaded = self._own(kernel)
        if 0 in grid:
            return
        try:
            site = loaded.sites.pop()
        except IndexError:
            site = DirectSite(loaded)
        scratch = None
        if loaded.kernel.launch.scratch_bytes:
            scratch = self._allocator.allocate(loaded.scratch_bytes(grid), stream)
        site.fill(arguments, loaded.aligned(scratch.address) if scratch is not None else 0)
        site.aim(grid, stream)
        code = self._context.run(self._launch_kernel, site.config, loaded.function, site.parameters, None)
        if code != SUCCESS:
            self._library.fail(code, f"launching kernel {loaded.kernel.entry}")
        # The driver has copied the parameters; a list's `append` and `pop` are atomic.
        loaded.sites.append(site)

    def stream(self) -> int:
        """The handle of torch's current stream of the device; 0 is the default one."""
        return self._allocator.stream()

    def is_capturing(self) -> bool:
        """Whether torch's current stream is being captured into a graph of the program's own."""
        return self._allocator.is_capturing()

    def synchronize(self, stream: int) -> None:
        """Waits until all work of a stream is done. Raises what the device reports of it."""
        code = self._context.run(self._library.function("cuStreamSynchronize"), stream)
        if code != SUCCESS:
            self._library.fail(code, "waiting for a stream")

    def elapsed_s(self, run: Callable[[], None], stream: int) -> float:
        """Seconds that the device takes for what `run` enqueues on a stream, by two events around it.

        Raises what the device reports of that work, or of earlier work.
        """
        start, end = self.streams.create_event(timing=True), self.streams.create_event(timing=True)
        self.streams.record_event(start, stream)
        run()
        self.streams.record_event(end, stream)
        self.streams.synchronize_event(end)
        return self.streams.elapsed_s(start, end)

    def fill_cache(self, stream: int) -> None:
        """Enqueues a write of twice the L2 cache, so that what it held is in memory alone."""
        level = self.target.level("L2")
        nbytes = 2 * level.size_bytes if level is not None else _FILL_BYTES
        if self._filler is None or self._filler.nbytes < nbytes:
            self._filler = self._allocator.allocate(nbytes)
        self.streams.memset_async(self._filler.address, 0, nbytes, stream)

    def record(self, launches: Sequence[LaunchOf]) -> CudaGraph:
        """An executable graph of launches that run one after the other. Raises what `launch` raises."""
        described = [(self._own(launch.kernel), launch.grid, launch.arguments) for launch in launches]
        return CudaGraph(self._context, self._allocator, described)

    def _own(self, kernel: Loaded) -> CudaKernel:
        if not isinstance(kernel, CudaKernel) or kernel.context is not self._context:
            raise DeviceError(f"kernel {kernel.kernel.entry} is not loaded on {self.name}", hints=["load it there"])
        return kernel


def runs_on(compiled: str, device: str) -> bool:
    """Whether machine code for one architecture ("sm_90") runs on devices of another.

    From compute capability 9.0 on Triton compiles for one architecture alone (`sm_90a`); older code runs on later
    devices of the same major version ("CUDA C++ Programming Guide", binary compatibility).
    """
    if compiled == device:
        return True
    if not (compiled.startswith("sm_") and device.startswith("sm_")):
        return False
    ours, theirs = int(compiled.removeprefix("sm_")), int(device.removeprefix("sm_"))
    return ours < 90 and ours // 10 == theirs // 10 and ours <= theirs
