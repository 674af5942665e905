"""Devices that kernels are launched on: what a plan asks of one, and which there are.

A driver stands for one device: it gives out memory, loads kernel objects, launches them on a stream, and records
straight lines of launches as graphs. Plans (`runtime/plans/gpu_plan.py`) know this protocol and nothing below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from tessera.system import forks
from tessera.target import Target

if TYPE_CHECKING:
    from tessera.backend.contract import GpuKernelObject

Grid: TypeAlias = tuple[int, int, int]
"""The number of programs along x, y and z."""


class DeviceMemory(Protocol):
    """`nbytes` bytes on a device, from `address` on, as long as `owner` lives: a torch tensor of uint8."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def owner(self) -> Any: ...


class Loaded(Protocol):
    """A kernel that a driver has loaded; it stays loaded as long as the object lives."""

    @property
    def kernel(self) -> GpuKernelObject:
        """What was loaded."""


class LaunchOf(NamedTuple):
    """One launch: `arguments` holds a number per parameter of the kernel, in order: an address, an extent or stride in
    elements, or a scalar.
    """

    kernel: Loaded
    grid: Grid
    arguments: Sequence[int | float]


class Graph(Protocol):
    """A straight line of launches that the device was given once and runs in one call."""

    def launch(self, stream: int) -> None:
        """Runs all launches in order, with the arguments that they were recorded or last updated with."""

    def update(self, index: int, grid: Grid, arguments: Sequence[int | float]) -> None:
        """Changes the grid and all arguments of launch number `index` for later launches of the graph."""


class Driver(Protocol):
    """One device. Thread-safe."""

    @property
    def name(self) -> str:
        """As users write it: "cuda:0", "interpreter"."""

    @property
    def target(self) -> Target:
        """What kernels for this device are compiled for."""

    @property
    def launches_tiles(self) -> bool:
        """Whether it launches kernels of CUDA's tiles (`LaunchFacts.is_tile`)."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Memory of the device (0 bytes are allowed) with arbitrary contents.

        Raises MemoryLimitError (E_MEMORY_LIMIT), which names the bytes requested and those free; nothing is leaked.
        """

    def load(self, kernel: GpuKernelObject) -> Loaded:
        """The kernel, loaded once and remembered.

        Raises UnsupportedTargetError where it was compiled for another GPU.
        """

    def launch(self, kernel: Loaded, grid: Grid, arguments: Sequence[int | float], stream: int) -> None:
        """Enqueues one launch on a stream; see `LaunchOf`."""

    def stream(self) -> int:
        """The handle of the stream that work goes to now: torch's current one; 0 is the device's default."""

    def is_capturing(self) -> bool:
        """Whether a program records what that stream is given, and runs it later: inside `torch.cuda.graph`."""

    def synchronize(self, stream: int) -> None:
        """Waits until all work of a stream is done. Raises what the device reports of it."""

    def record(self, launches: Sequence[LaunchOf]) -> Graph | None:
        """A graph of launches that run one after the other; None where the device has no graphs."""


OPENERS: Final[dict[str, tuple[str, str]]] = {
    "cuda": ("tessera.runtime.cuda", "open_device"),
    "interpreter": ("tessera.runtime.devices.interpreter_device", "open_device"),
}
"""Kind of device -> module and function that makes the driver of device number n, or raises why there is none."""

_drivers: dict[str, Driver] = {}
_lock = forks.lock()


def driver_of(name: str) -> Driver:
    """The driver of a device by its name (`lazy.devices.device_named`), made at the first call.

    Raises DeviceError where there is no such device, and UnsupportedTargetError where kernels cannot be made for it
    or launched on it (no Triton, an old driver, torch built without CUDA).
    """
    known = _drivers.get(name)
    if known is not None:
        return known
    with _lock:
        if name not in _drivers:
            kind, _, number = name.partition(":")
            module, function = OPENERS[kind]
            opener: Callable[[int], Driver] = getattr(import_module(module), function)
            _drivers[name] = opener(int(number or 0))
        return _drivers[name]


def use_driver(name: str, driver: Driver | None) -> Driver | None:
    """Makes `driver` stand for a device from now on (None: the device's own again), and gives the one it replaces.

    For tests, and for programs that bring a device of their own.
    """
    with _lock:
        before = _drivers.pop(name, None)
        if driver is not None:
            _drivers[name] = driver
        return before
