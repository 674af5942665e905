"""What every backend offers, and what passes between a backend and those who run its kernels.

This module loads neither xDSL nor LLVM: kernels are loaded and run by processes that never compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from tessera.backend import container
from tessera.backend.container import distance, text, whole
from tessera.backend.gpu_objects import GpuKernelObject, GpuParameter, LaunchFacts, StaticFacts, TensorMapFacts
from tessera.errors import CompileError
from tessera.target import CoreFacts, Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

__all__ = [
    "Backend",
    "CpuBackend",
    "GpuBackend",
    "GpuKernelObject",
    "GpuParameter",
    "KernelObject",
    "Kind",
    "LaunchFacts",
    "LoadedKernel",
    "Parameter",
    "StaticFacts",
    "TensorMapFacts",
]

Kind = Literal["source", "asm", "object"]

_MAGIC = b"TESSERA-KERNEL-1\n"


@dataclass(frozen=True)
class Parameter:
    """One kernel argument: a buffer, or a scalar (`extents` is None).

    `dtype` is the MLIR name of the element type, `index` included. `extents` and `strides`, in elements, hold an
    integer where the kernel relies on it and None where any value will do; a buffer of rank r has r of each.
    """

    dtype: str
    extents: tuple[int | None, ...] | None = None
    strides: tuple[int | None, ...] = ()

    @property
    def is_scalar(self) -> bool:
        """Whether the argument is passed by value."""
        return self.extents is None

    @property
    def descriptor_words(self) -> int:
        """How many 64-bit words describe the argument: `slot, byte_offset, extent[r], stride[r]`, or `slot` alone."""
        return 1 if self.extents is None else 2 + 2 * len(self.extents)


@dataclass(frozen=True)
class KernelObject:
    """A compiled kernel that can be kept, sent to another process and loaded there.

    `code` is a relocatable object whose function `entry` has the kernel ABI. `workspace_bytes` is the scratch memory of
    one worker, 64-byte aligned. `outputs` are the indices of the parameters it writes. `arch` names the CPU it was
    compiled for and `features` all of that CPU's features, which the CPU it runs on must have. A `timed` kernel reads a
    word behind its descriptors: the address of the memory that `backend/tile_times.py` lays out.
    """

    code: bytes
    entry: str
    workspace_bytes: int
    parameters: tuple[Parameter, ...]
    outputs: tuple[int, ...]
    arch: str
    features: tuple[str, ...]
    timed: bool = False

    def to_bytes(self) -> bytes:
        """A container that describes itself: see `backend.container`."""
        fields = asdict(self)
        del fields["code"]
        return container.pack(_MAGIC, fields, self.code)

    @staticmethod
    def from_bytes(data: bytes) -> KernelObject:
        """The kernel in a container. Raises CacheFormatError when it is cut short, altered or of another format."""
        header, code = container.unpack(_MAGIC, data)
        try:
            return _from_header(header, code)
        except (KeyError, TypeError) as error:
            raise container.damaged(error) from error


def _from_header(header: Mapping[str, Any], code: bytes) -> KernelObject:
    """Raises KeyError or TypeError for what is no header of a kernel."""
    return KernelObject(
        code=code,
        entry=text(header["entry"]),
        workspace_bytes=whole(header["workspace_bytes"]),
        parameters=tuple(map(_parameter, header["parameters"])),
        outputs=tuple(map(whole, header["outputs"])),
        arch=text(header["arch"]),
        features=tuple(map(text, header["features"])),
        timed=header.get("timed", False) is True,
    )


def _parameter(fields: Mapping[str, Any]) -> Parameter:
    def relied_on(read: Callable[[object], int], values: Iterable[object]) -> tuple[int | None, ...]:
        return tuple(None if value is None else read(value) for value in values)

    stated = fields["extents"]
    extents = None if stated is None else relied_on(whole, stated)
    return Parameter(text(fields["dtype"]), extents, relied_on(distance, fields["strides"]))


class LoadedKernel(Protocol):
    """A kernel in this process's memory. Its code stays mapped as long as this object lives."""

    @property
    def address(self) -> int:
        """The address of `void (i64 *table, i64 *descriptors, i64 worker, i64 workers, i8 *workspace)`."""

    @property
    def kernel(self) -> KernelObject:
        """What was loaded."""


K = TypeVar("K")
"""What a backend compiles kernels to: `KernelObject` for CPUs, `GpuKernelObject` for GPUs."""


class Backend(Protocol[K]):
    """A code generator. Its only inputs are Tile IR modules, each with exactly one kernel, and the target."""

    @property
    def device(self) -> str:
        """The kind of device that runs its kernels: "cpu", "cuda", "interpreter"."""

    def version(self) -> str:
        """The version of what makes machine code. Raises UnsupportedTargetError where that is not installed."""

    def preload(self, compiles: bool = True) -> None:
        """Imports what a first compilation needs, or the loading of compiled kernels alone, so that processes forked
        from this one have it.
        """

    def emit(self, module: ModuleOp, target: Target, kind: Kind) -> str | bytes:
        """The kernel as text ("source", "asm") or as the bytes of its object's container ("object").

        Raises CompileError for Tile IR or a kind of text that this backend cannot express.
        """

    def compile(self, module: ModuleOp, target: Target, keep: bool = True) -> K:
        """The kernel, compiled. `keep=False` is for candidates of a tuning, which need not be kept on disk.

        Raises CompileError for what cannot be expressed or is refused, and UnsupportedTargetError for a target that
        nothing is compiled for here.
        """

    def compile_all(self, modules: Sequence[ModuleOp], target: Target, keep: bool = True) -> list[K | CompileError]:
        """Each module's kernel, or why it does not compile. Raises what `compile` raises but for CompileError."""


class CpuBackend(Backend[KernelObject], Protocol):
    """A backend whose kernels run in this process."""

    def core_facts(self, target: Target) -> CoreFacts | None:
        """What one core of this machine, described by `target`, was found to do; measured now, in some 100 ms, where
        that is not known yet. None from a backend that cannot tell.
        """

    def stored(self, key: str, make: Callable[[], ModuleOp], target: Target) -> KernelObject:
        """The kernel kept under `key`, which must say all that its code depends on; where there is none, that of the
        module that `make` gives, which is then kept. Raises what `compile` raises.
        """

    def load(self, kernel: KernelObject) -> LoadedKernel:
        """The kernel, loaded. Raises UnsupportedTargetError when this CPU lacks a feature it was compiled for."""


class GpuBackend(Backend[GpuKernelObject], Protocol):
    """A backend whose kernels a driver loads and launches (`runtime/devices/device.py`)."""

    def facts(self, modules: Sequence[ModuleOp], target: Target) -> list[StaticFacts | CompileError]:
        """What each kernel becomes on a GPU that need not be there, or why it does not compile. Raises what `compile`
        raises but for CompileError.
        """

    def tick_ns(self, target: Target) -> float:
        """Nanoseconds in which the clock that timed kernels read counts one."""
