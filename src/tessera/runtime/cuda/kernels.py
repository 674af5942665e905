"""Loaded kernels, and the memory that a launch is described in.

A `LaunchSite` is prepared once and used for many launches: only numbers that changed are written. A site belongs to one
thread at a time; `CudaKernel.sites` holds those that nobody uses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

from tessera.backend.contract import GpuKernelObject
from tessera.errors import ArgumentError, UnsupportedTargetError
from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.context import Context
from tessera.runtime.cuda.parameters import Number, ParameterLayout
from tessera.runtime.cuda.tensormap import encode
from tessera.runtime.devices.device import Grid

_MOST_PROGRAMS: Final = (2**31 - 1, 65_535, 65_535)
"""Along x, y and z ("CUDA C++ Programming Guide", technical specifications)."""
_SHARED_WITHOUT_ASKING: Final = 48 * 1024
_MOST_PORTABLE_CLUSTER: Final = 8


class CudaKernel:
    """A kernel in a device's memory, for good: CUDA frees modules with their context."""

    def __init__(self, context: Context, kernel: GpuKernelObject) -> None:
        if kernel.launch.profile_scratch_bytes:
            raise UnsupportedTargetError(
                f"kernel {kernel.entry} was compiled with Triton's instrumentation, which has no memory to write to",
                hints=["compile it without: unset TRITON_INSTRUMENTATION_MODE"],
            )
        self.kernel = kernel
        self.context = context
        self.layout = ParameterLayout(kernel)
        self.attributes = _attributes(kernel)
        self.sites: list[DirectSite] = []
        library = context.library
        with context.entered():
            module = library.handle("cuModuleLoadData", kernel.image)
            self.function = library.handle("cuModuleGetFunction", module, kernel.entry.encode())
            self._reserve_shared_memory()
            if kernel.launch.clusters > _MOST_PORTABLE_CLUSTER:
                library.call("cuFuncSetAttribute", self.function, cuda.FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def _reserve_shared_memory(self) -> None:
        library, wanted = self.context.library, self.kernel.launched_shared_bytes
        if wanted <= _SHARED_WITHOUT_ASKING:
            return
        optin = cuda.DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        offered = library.number("cuDeviceGetAttribute", optin, self.context.device)
        static = library.number("cuFuncGetAttribute", cuda.FUNC_SHARED_SIZE_BYTES, self.function)
        if wanted + static > offered:
            raise UnsupportedTargetError(
                f"kernel {self.kernel.entry} takes {wanted + static:,} bytes of shared memory a block, and this GPU "
                f"has {offered:,}"
            )
        # Else the split of shared memory and L1 may leave room for one block where several would fit.
        library.call("cuFuncSetCacheConfig", self.function, cuda.FUNC_CACHE_PREFER_SHARED)
        library.call("cuFuncSetAttribute", self.function, cuda.FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, wanted)

    def scratch_bytes(self, grid: Grid) -> int:
        """Bytes of scratch memory that a launch takes, with room to align it."""
        facts = self.kernel.launch
        if not facts.scratch_bytes:
            return 0
        return grid[0] * grid[1] * grid[2] * facts.clusters * facts.scratch_bytes + facts.scratch_alignment

    def aligned(self, scratch: int) -> int:
        """The address in scratch memory that the kernel is given."""
        alignment = self.kernel.launch.scratch_alignment
        return -(-scratch // alignment) * alignment


class LaunchSite:
    """The parameters of one launch of a kernel in memory, and pointers to them."""

    def __init__(self, kernel: CudaKernel) -> None:
        layout = kernel.layout
        maps_bytes = len(layout.maps) * cuda.TENSOR_MAP_BYTES
        self.kernel = kernel
        self._layout = layout
        self._memory = ctypes.create_string_buffer(maps_bytes + layout.nbytes + cuda.TENSOR_MAP_ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self._maps = -(-start // cuda.TENSOR_MAP_ALIGNMENT) * cuda.TENSOR_MAP_ALIGNMENT
        self._values_at = self._maps - start + maps_bytes
        pointers = layout.pointers(start + self._values_at, self._maps)
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.parameters = ctypes.addressof(self._pointers)
        """The address of the array of pointers that CUDA calls `kernelParams`."""
        self._mapped: list[tuple[Number, ...] | None] = [None] * len(layout.maps)

    def fill(self, arguments: Sequence[Number], scratch: int = 0) -> None:
        """Writes a launch's arguments, `scratch` as the address of scratch memory. Raises ArgumentError for arguments
        that the kernel does not take.
        """
        self._layout.pack(self._memory, self._values_at, arguments, scratch)
        for number, source in enumerate(self._layout.maps):
            described = tuple(arguments[source.first : source.first + 1 + 2 * source.rank])
            if described != self._mapped[number]:
                address, *sizes = (int(value) for value in described)
                at = self._maps + number * cuda.TENSOR_MAP_BYTES
                context = self.kernel.context
                with context.entered():  # encoding may ask the current device: it can give INVALID_CONTEXT
                    encode(context.library, at, source.facts, address, sizes[: source.rank], sizes[source.rank :])
                self._mapped[number] = described


class DirectSite(LaunchSite):
    """A site with the configuration of `cuLaunchKernelEx`, whose address is `config`."""

    def __init__(self, kernel: CudaKernel) -> None:
        super().__init__(kernel)
        attributes = kernel.attributes
        self._config = cuda.LaunchConfig(
            blockDimX=kernel.kernel.launched_threads,
            blockDimY=1,
            blockDimZ=1,
            sharedMemBytes=kernel.kernel.launched_shared_bytes,
            attrs=ctypes.addressof(attributes) if len(attributes) else None,
            numAttrs=len(attributes),
        )
        self.config = ctypes.addressof(self._config)
        self._grid: Grid = (0, 0, 0)

    def aim(self, grid: Grid, stream: int) -> None:
        """Says how many programs are launched, and where."""
        config = self._config
        if grid != self._grid:
            config.gridDimX, config.gridDimY, config.gridDimZ = blocks(self.kernel.kernel, grid)
            self._grid = grid
        config.hStream = stream


class NodeSite(LaunchSite):
    """A site with the parameters of a graph's kernel node, whose address is `node_parameters`."""

    def __init__(self, kernel: CudaKernel) -> None:
        super().__init__(kernel)
        self._node = cuda.KernelNodeParams(
            func=kernel.function,
            blockDimX=kernel.kernel.launched_threads,
            blockDimY=1,
            blockDimZ=1,
            sharedMemBytes=kernel.kernel.launched_shared_bytes,
            kernelParams=self.parameters,
        )
        self.node_parameters = ctypes.addressof(self._node)

    def aim(self, grid: Grid) -> None:
        """Says how many programs are launched."""
        self._node.gridDimX, self._node.gridDimY, self._node.gridDimZ = blocks(self.kernel.kernel, grid)


def blocks(kernel: GpuKernelObject, grid: Grid) -> Grid:
    """The grid in thread blocks. Raises ArgumentError for a grid that CUDA does not launch."""
    counts = (grid[0] * kernel.launch.clusters, grid[1], grid[2])
    if any(not 0 < count <= most for count, most in zip(counts, _MOST_PROGRAMS, strict=True)):
        raise ArgumentError(
            f"kernel {kernel.entry}: a grid of {grid} programs cannot be launched",
            hints=[f"CUDA launches 1 to {_MOST_PROGRAMS} thread blocks along x, y and z"],
        )
    return counts


def _attributes(kernel: GpuKernelObject) -> ctypes.Array[cuda.LaunchAttribute]:
    """The attributes of every launch of a kernel, as Triton's launcher sets them."""
    facts = kernel.launch
    found: list[cuda.LaunchAttribute] = []
    if facts.dependent:
        value = cuda.LaunchAttributeValue(programmaticStreamSerializationAllowed=1)
        found.append(cuda.LaunchAttribute(id=cuda.ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value=value))
    if facts.cooperative:
        value = cuda.LaunchAttributeValue(cooperative=1)
        found.append(cuda.LaunchAttribute(id=cuda.ATTRIBUTE_COOPERATIVE, value=value))
    if facts.clusters > 1:
        value = cuda.LaunchAttributeValue(clusterDim=cuda.ClusterDimension(facts.clusters, 1, 1))
        found.append(cuda.LaunchAttribute(id=cuda.ATTRIBUTE_CLUSTER_DIMENSION, value=value))
        value = cuda.LaunchAttributeValue(clusterSchedulingPolicyPreference=cuda.CLUSTER_SCHEDULING_POLICY_SPREAD)
        found.append(cuda.LaunchAttribute(id=cuda.ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, value=value))
    return (cuda.LaunchAttribute * len(found))(*found)
