"""Kernel objects of GPUs: the machine code of one printed kernel, and all that launching it takes.

This module loads neither xDSL nor Triton: kernels are loaded and launched by processes that never compile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tessera.backend import container
from tessera.errors import CacheFormatError
from tessera.target import Target
from tessera.target.occupancy import Occupancy, occupancy

Role: TypeAlias = Literal["argument", "size", "stride", "descriptor", "times"]

_MAGIC = b"TESSERA-GPU-KERNEL-1\n"
_DESCRIPTOR = re.compile(r"tensordesc<(?P<element>\w+)\[(?P<block>[\d, ]+)\]>")


@dataclass(frozen=True)
class GpuParameter:
    """A parameter of a printed kernel, in launch order.

    `kind` is Triton's name of its type ("*bf16", "i32", "i64", "fp32", "tensordesc<bf16[128, 64]>"). It is the kernel
    argument of number `argument` itself, the size or stride of its dimension `dim`, or a descriptor of it, which walks
    its dimensions in `order`; or, of a timed kernel, the address of the memory for times ("times", `tile_clock.py`),
    which is no argument's. The code relies on its value being a multiple of `divisor`.
    """

    name: str
    kind: str
    argument: int
    role: Role = "argument"
    dim: int = 0
    order: tuple[int, ...] = ()
    divisor: int = 1

    @property
    def block(self) -> tuple[int, ...] | None:
        """The extents of the tiles that a tensor descriptor gives; None for any other parameter."""
        match = _DESCRIPTOR.fullmatch(self.kind)
        return tuple(int(extent) for extent in match["block"].split(",")) if match else None

    @property
    def words(self) -> int:
        """How many numbers a launch gives for it: one; for a tensor descriptor of rank r the address, r extents and r
        strides in elements.
        """
        block = self.block
        return 1 if block is None else 1 + 2 * len(block)


@dataclass(frozen=True)
class TensorMapFacts:
    """How the compiler wants the tensor map (`CUtensorMap`) of one descriptor parameter: the enumeration values that
    it chose for swizzling and element type, bytes of an element, and the box that one copy moves.
    """

    swizzle: int
    element_bytes: int
    element_type: int
    box: tuple[int, ...]


@dataclass(frozen=True)
class LaunchFacts:
    """How the compiler wants a kernel launched, beyond threads and shared memory.

    `scratch_bytes` of device memory for each program, aligned to `scratch_alignment` bytes (device-side descriptors
    are built there); `profile_scratch_bytes` likewise, for instrumented kernels; `clusters` thread blocks a program;
    `cooperative` and `dependent` (programmatic dependent launch) are flags of the launch. `tensor_maps` has an entry
    for each descriptor parameter that is passed as a `CUtensorMap`: for all of them, or for none. Machine code takes
    two addresses behind the kernel's own parameters, of both scratch memories, as Triton's does; but for a kernel of
    CUDA's tiles (`is_tile`), which takes its own alone, and is launched with one thread a block and no dynamic shared
    memory: the driver knows both from the machine code.
    """

    scratch_bytes: int = 0
    scratch_alignment: int = 1
    profile_scratch_bytes: int = 0
    profile_scratch_alignment: int = 1
    clusters: int = 1
    cooperative: bool = False
    dependent: bool = False
    tensor_maps: tuple[TensorMapFacts, ...] = ()
    is_tile: bool = False

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> LaunchFacts:
        """The facts that `dataclasses.asdict` gave and JSON carried. Raises CacheFormatError for anything else."""
        if not isinstance(record, dict) or record.keys() != {field.name for field in fields(LaunchFacts)}:
            raise CacheFormatError(f"these are no launch facts of this version: {record}")
        try:
            maps = [TensorMapFacts(**{**each, "box": tuple(each["box"])}) for each in record["tensor_maps"]]
        except (KeyError, TypeError) as error:
            raise CacheFormatError(f"these are no tensor maps of this version: {record['tensor_maps']}") from error
        return LaunchFacts(**{**record, "tensor_maps": tuple(maps)})


@dataclass(frozen=True)
class StaticFacts:
    """A compiled kernel: `registers` and `spill_bytes` a thread (stores and loads), `shared_bytes` a block, `warps` and
    `stages` as compiled, columns of Blackwell's tensor memory, the number of `instructions` that matter and of
    `operations` of Triton's GPU dialects that say what became of a schedule, how it is launched, and where the printed
    `source` lies. `image_sha256` is the digest of its machine code, `remarks` what the compiler says of how it made it.
    """

    compiler: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    stages: int
    tensor_memory_columns: int
    instructions: Mapping[str, int]
    operations: Mapping[str, int]
    launch: LaunchFacts
    image_sha256: str
    source: str
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The printed source."""
        return Path(self.source).read_text()

    def occupancy(self, target: Target) -> Occupancy:
        """How many warps a multiprocessor of `target` holds at a time."""
        assert target.gpu is not None
        return occupancy(target.gpu, self.warps, self.registers, self.shared_bytes, self.tensor_memory_columns)


@dataclass(frozen=True)
class GpuKernelObject:
    """A kernel compiled for GPUs of one architecture, which can be kept, sent to another process and loaded there.

    `image` is machine code (an ELF file: cubin or hsaco) with the function `entry`; `source` the text that it was made
    from, `compiler` the name and version of what made it. A program has `threads` threads and `shared_bytes` of shared
    memory, whatever a launch asks for. `registers` and `spill_bytes` are a thread's.
    """

    image: bytes
    entry: str
    source: str
    arch: str
    threads: int
    shared_bytes: int
    parameters: tuple[GpuParameter, ...]
    launch: LaunchFacts
    compiler: str
    registers: int
    spill_bytes: int

    @property
    def launched_threads(self) -> int:
        """The threads of a block that a launch asks for."""
        return 1 if self.launch.is_tile else self.threads

    @property
    def launched_shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a block that a launch asks for."""
        return 0 if self.launch.is_tile else self.shared_bytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes of device memory that each program needs."""
        return self.launch.scratch_bytes

    @property
    def scratch_alignment(self) -> int:
        """To how many bytes that memory is aligned."""
        return self.launch.scratch_alignment

    def to_bytes(self) -> bytes:
        """A container that describes itself: see `backend.container`."""
        record = asdict(self)
        del record["image"]
        return container.pack(_MAGIC, record, self.image)

    @staticmethod
    def from_bytes(data: bytes) -> GpuKernelObject:
        """The kernel in a container. Raises CacheFormatError when it is cut short, altered or of another format."""
        record, image = container.unpack(_MAGIC, data)
        try:
            parameters = tuple(
                GpuParameter(**{**parameter, "order": tuple(parameter["order"])})
                for parameter in record.pop("parameters")
            )
            launch = LaunchFacts.from_json(record.pop("launch"))
            return GpuKernelObject(image=image, parameters=parameters, launch=launch, **record)
        except (KeyError, TypeError) as error:
            raise container.damaged(error) from error
