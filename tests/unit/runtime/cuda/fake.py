# ruff: noqa: N802 - methods are called as the functions of cuda.h are
"""A CUDA driver that records every call: functions of C, called through ctypes as the real ones are, with bodies of
Python that read what they are pointed to.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_char_p, c_float, c_int, c_void_p
from dataclasses import dataclass, field
from typing import Any

import torch

from tessera import target
from tessera.backend.contract import GpuKernelObject, GpuParameter, LaunchFacts
from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.driver import CudaDriver
from tessera.runtime.cuda.libcuda import Libcuda
from tessera.runtime.cuda.memory import DeviceBytes, out_of_memory
from tessera.runtime.cuda.results import FAULTS
from tests.unit.backend.triton import cubin

CONTEXT = 0xC0DE
OFFERED_SHARED = 232_448
UNKNOWN = 999
_MADE = (
    *("cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuEventCreate", "cuGraphCreate"),
    *("cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags"),
)
"""Functions that write a fresh handle through their first argument."""
_WITHOUT_CONTEXT = ("cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion", "cuInit", "cuDeviceGet")
"""Functions that a lost context does not stop."""


@dataclass
class Launched:
    """A kernel as the driver was told to launch it."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: list[bytes]
    stream: int = 0
    attributes: dict[int, bytes] = field(default_factory=dict)


class FakeCuda:
    """`Libcuda(fake.resolve)` calls this driver. `sizes` are the sizes of a kernel's parameters, which the real driver
    knows from the machine code; so does this one of kernels whose code is a cubin. `results` has the codes that
    functions fail with, `missing` those that are not there; `fail` chooses one call. A fault loses the context: every
    later call that needs it fails with the same code. A kernel whose entry `bodies` names does what that function makes
    of its grid and its parameters' bytes, where it is launched; others do nothing.
    """

    def __init__(self, sizes: Sequence[int] = (), version: int = 12_080) -> None:
        self.sizes = list(sizes)
        self.version = version
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.results: dict[str, int] = {}
        self.lost = 0
        """The fault that has lost the context, 0 where it is there."""
        self.missing: set[str] = set()
        self.current = CONTEXT
        self.launched: list[Launched] = []
        self.nodes: dict[int, Launched] = {}
        self.order: list[int] = []
        self.disabled: set[int] = set()
        self.maps: list[dict[str, Any]] = []
        self.memory_types: dict[int, int] = {}
        self.problems: list[AssertionError] = []
        self.bodies: dict[str, Callable[[tuple[int, int, int], list[bytes]], None]] = {}
        self._entries: dict[int, str] = {}
        self._failing: dict[tuple[str, int], int] = {}
        self._images: dict[int, cubin.Cubin] = {}
        self._sizes: dict[int, list[int]] = {}
        self._next = 0x1000
        self._kept: list[Any] = []

    def resolve(self, symbol: str, arguments: tuple[Any, ...]) -> Callable[..., int]:
        if symbol in self.missing:
            raise AttributeError(symbol)
        body = getattr(self, symbol, None)

        def call(*given: Any) -> int:
            self.calls.append((symbol, given))
            failed = self._failure(symbol)
            if failed:
                return failed
            if symbol in _MADE:
                self._next += 1
                _write(given[0], c_void_p(self._next))
            if body is not None:
                try:
                    body(*given)
                except AssertionError as problem:  # ctypes would swallow it
                    self.problems.append(problem)
                    return UNKNOWN
            return 0

        function = CFUNCTYPE(c_int, *arguments)(call)
        self._kept.append(function)
        return function

    def names(self) -> list[str]:
        """The symbols called so far, in order."""
        return [name for name, _ in self.calls]

    def counts(self) -> Counter[str]:
        """How often each symbol was called so far."""
        return Counter(self.names())

    def fail(self, symbol: str, code: int, call: int = 1) -> None:
        """Has call number `call` of a function, counted from now on, fail with `code`."""
        self._failing[symbol, self.counts()[symbol] + call] = code

    def _failure(self, symbol: str) -> int:
        """The code that this call fails with, 0 where it succeeds."""
        if self.lost and symbol not in _WITHOUT_CONTEXT:
            return self.lost
        chosen = self._failing.get((symbol, self.counts()[symbol]), 0) if self._failing else 0
        code = chosen or self.results.get(symbol, 0)
        if chosen in FAULTS:
            self.lost = chosen
        return code

    # -- bodies -------------------------------------------------------------------------------------------------------

    def cuDriverGetVersion(self, version: int) -> None:
        _write(version, c_int(self.version))

    def cuGetErrorString(self, code: int, text: int) -> None:
        if code in (2, 700, 5555):
            _write(text, c_char_p(b"as the driver words it"))

    def cuGetErrorName(self, code: int, text: int) -> None:
        _write(text, c_char_p(b"CUDA_ERROR_OF_TOMORROW"))

    def cuDeviceGet(self, device: int, ordinal: int) -> None:
        _write(device, c_int(ordinal))

    def cuDevicePrimaryCtxRetain(self, context: int, device: int) -> None:
        _write(context, c_void_p(CONTEXT))

    def cuDeviceGetAttribute(self, value: int, attribute: int, device: int) -> None:
        assert attribute == cuda.DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        _write(value, c_int(OFFERED_SHARED))

    def cuCtxGetCurrent(self, context: int) -> None:
        _write(context, c_void_p(self.current))

    def cuFuncGetAttribute(self, value: int, attribute: int, function: int) -> None:
        _write(value, c_int(0))

    def cuEventElapsedTime(self, milliseconds: int, start: int, end: int) -> None:
        _write(milliseconds, c_float(1.5))

    def cuPointerGetAttribute(self, value: int, attribute: int, address: int) -> None:
        _write(value, c_int(self.memory_types.get(address, 0)))

    def cuModuleLoadData(self, module: int, image: int) -> None:
        if ctypes.string_at(image, 4) == b"\x7fELF":
            self._images[c_void_p.from_address(module).value or 0] = cubin.read(_whole(image))

    def cuModuleGetFunction(self, function: int, module: int, name: int) -> None:
        image, made = self._images.get(module), c_void_p.from_address(function).value or 0
        entry = self._entries[made] = ctypes.string_at(name).decode()
        if image is not None:
            self._sizes[made] = [size for _, size in image.parameters(entry).places]

    def cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: int | None) -> None:
        assert extra is None
        found = cuda.LaunchConfig.from_address(config)
        attributes = (cuda.LaunchAttribute * found.numAttrs).from_address(found.attrs) if found.numAttrs else ()
        self.launched.append(
            Launched(
                function,
                (found.gridDimX, found.gridDimY, found.gridDimZ),
                (found.blockDimX, found.blockDimY, found.blockDimZ),
                found.sharedMemBytes,
                self._parameters(function, parameters),
                found.hStream or 0,
                {attribute.id: bytes(attribute.value) for attribute in attributes},
            )
        )
        self._run(self.launched[-1])

    def cuGraphLaunch(self, executable: int, stream: int) -> None:
        for node in self.order:  # of the graph made last
            if node not in self.disabled:
                self._run(self.nodes[node])

    def _run(self, launched: Launched) -> None:
        body = self.bodies.get(self._entries.get(launched.function, ""))
        if body is not None:
            body(launched.grid, launched.parameters)

    def cuGraphCreate(self, graph: int, flags: int) -> None:
        self.order = []  # of the graph made last

    def cuGraphAddKernelNode_v2(
        self, node: int, graph: int, dependencies: int | None, count: int, parameters: int
    ) -> None:
        (made,) = (c_void_p.from_address(node).value,)
        assert made is not None
        self.nodes[made] = self._node(parameters)
        before = c_void_p.from_address(dependencies).value if dependencies else None
        assert (before, count) == ((self.order[-1], 1) if self.order else (None, 0))
        self.order.append(made)

    def cuGraphKernelNodeSetAttribute(self, node: int, attribute: int, value: int) -> None:
        self.nodes[node].attributes[attribute] = ctypes.string_at(value, 64)

    def cuGraphNodeSetEnabled(self, executable: int, node: int, enabled: int) -> None:
        (self.disabled.discard if enabled else self.disabled.add)(node)

    def cuGraphExecKernelNodeSetParams_v2(self, executable: int, node: int, parameters: int) -> None:
        self.nodes[node] = self._node(parameters)

    def cuTensorMapEncodeTiled(self, *given: Any) -> None:
        at, kind, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill = given
        assert at % cuda.TENSOR_MAP_ALIGNMENT == 0
        ctypes.memset(at, len(self.maps) + 1, cuda.TENSOR_MAP_BYTES)
        self.maps.append(
            {
                "type": kind,
                "address": address,
                "extents": list((ctypes.c_uint64 * rank).from_address(extents)),
                "strides": list((ctypes.c_uint64 * (rank - 1)).from_address(strides)),
                "box": list((ctypes.c_uint * rank).from_address(box)),
                "steps": list((ctypes.c_uint * rank).from_address(steps)),
                "modes": (interleave, swizzle, promotion, fill),
            }
        )

    def _node(self, parameters: int) -> Launched:
        found = cuda.KernelNodeParams.from_address(parameters)
        return Launched(
            found.func,
            (found.gridDimX, found.gridDimY, found.gridDimZ),
            (found.blockDimX, found.blockDimY, found.blockDimZ),
            found.sharedMemBytes,
            self._parameters(found.func, found.kernelParams),
        )

    def _parameters(self, function: int, pointers: int) -> list[bytes]:
        sizes = self._sizes.get(function, self.sizes)
        addresses = (c_void_p * len(sizes)).from_address(pointers)
        return [ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True)]


def _whole(image: int) -> bytes:
    """The bytes of an ELF file in memory; its table of sections comes last in what Triton and NVIDIA's tools write, or
    its segments' behind it.
    """
    header = ctypes.string_at(image, 64)
    segments, sections = struct.unpack_from("<QQ", header, 32)
    segment_bytes, segment_count, section_bytes, section_count = struct.unpack_from("<HHHH", header, 54)
    return ctypes.string_at(
        image, max(segments + segment_bytes * segment_count, sections + section_bytes * section_count)
    )


def _write(address: int, value: Any) -> None:
    ctypes.memmove(address, ctypes.addressof(value), ctypes.sizeof(value))


class HostAllocator:
    """Memory of the host in place of a device's: `capacity` bytes of it."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.current_stream = 7
        self.given: list[tuple[int, int | None]] = []
        self.kept: list[tuple[int, int]] = []

    def allocate(self, nbytes: int, stream: int | None = None) -> DeviceBytes:
        if nbytes > self.capacity:
            raise out_of_memory(nbytes, self.capacity, self.capacity, "cuda:0")
        self.given.append((nbytes, stream))
        owner = torch.empty(nbytes, dtype=torch.uint8)
        return DeviceBytes(owner.data_ptr(), nbytes, owner)

    def keep_for(self, memory: DeviceBytes, stream: int) -> None:
        self.kept.append((memory.address, stream))

    def stream(self) -> int:
        return self.current_stream

    def is_capturing(self) -> bool:
        return False

    def create_stream(self) -> object:
        return object()


def driver(fake: FakeCuda, allocator: HostAllocator | None = None, gpu: str = "h200") -> CudaDriver:
    """A driver of cuda:0 over a fake."""
    library = Libcuda(fake.resolve)
    library.initialize()
    return CudaDriver("cuda:0", 0, target.gpu(gpu), library, allocator or HostAllocator())


def kernel(
    *parameters: GpuParameter,
    entry: str = "k",
    threads: int = 128,
    shared: int = 1024,
    arch: str = "sm_90",
    launch: LaunchFacts | None = None,
) -> GpuKernelObject:
    """A kernel object without machine code."""
    return GpuKernelObject(
        image=b"machine\0code",
        entry=entry,
        source="",
        arch=arch,
        threads=threads,
        shared_bytes=shared,
        parameters=parameters,
        launch=launch or LaunchFacts(),
        compiler="Triton 3.6.0",
        registers=32,
        spill_bytes=0,
    )
