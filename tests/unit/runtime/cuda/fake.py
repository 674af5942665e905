# ruff: noqa: N802 - methods are called as the functions of cuda.h are
"""A CUDA driver that records every call: functions of C, called through ctypes as the real ones are, with bodies of
Python that read what they are pointed to.
"""

from __future__ import annotations

import ctypes
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

CONTEXT = 0xC0DE
OFFERED_SHARED = 232_448
UNKNOWN = 999
_MADE = (
    *("cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuEventCreate", "cuGraphCreate"),
    *("cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags"),
)
"""Functions that write a fresh handle through their first argument."""


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
    knows from the machine code. `results` has the codes that functions fail with, `missing` those that are not there.
    """

    def __init__(self, sizes: Sequence[int] = (), version: int = 12_080) -> None:
        self.sizes = list(sizes)
        self.version = version
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.results: dict[str, int] = {}
        self.missing: set[str] = set()
        self.current = CONTEXT
        self.launched: list[Launched] = []
        self.nodes: dict[int, Launched] = {}
        self.order: list[int] = []
        self.disabled: set[int] = set()
        self.maps: list[dict[str, Any]] = []
        self.memory_types: dict[int, int] = {}
        self.problems: list[AssertionError] = []
        self._next = 0x1000
        self._kept: list[Any] = []

    def resolve(self, symbol: str, arguments: tuple[Any, ...]) -> Callable[..., int]:
        if symbol in self.missing:
            raise AttributeError(symbol)
        body = getattr(self, symbol, None)

        def call(*given: Any) -> int:
            self.calls.append((symbol, given))
            if self.results.get(symbol):
                return self.results[symbol]
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
                self._parameters(parameters),
                found.hStream or 0,
                {attribute.id: bytes(attribute.value) for attribute in attributes},
            )
        )

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
            self._parameters(found.kernelParams),
        )

    def _parameters(self, pointers: int) -> list[bytes]:
        addresses = (c_void_p * len(self.sizes)).from_address(pointers)
        return [ctypes.string_at(address, size) for address, size in zip(addresses, self.sizes, strict=True)]


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
        triton="3.6.0",
        registers=32,
        spill_bytes=0,
    )
