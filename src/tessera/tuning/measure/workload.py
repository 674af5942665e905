"""What to run when a candidate is measured: operands, scalars, the check (`Workload`), and one candidate's kernels
(`Case`).

Everything here is plain data that is pickled to a worker process: kernels as object bytes, operands as recipes that
give the same values in every process. The kernels' address table is: the operands, then the scalars, then the
candidate's temporaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias
from uuid import uuid4

import torch

from tessera.dtypes import dtype_of
from tessera.tuning.measure.checking import OutputCheck
from tessera.tuning.measure.conditions import Cache, Conditions, LaunchMode
from tessera.tuning.measure.guarded_memory import GuardedMemory

Values: TypeAlias = Literal["normal", "positive", "zero"]

GUARD = 64
"""Elements before and after every operand that no kernel may change; a multiple of the cache line keeps operands
aligned.
"""

_CANARY = 80
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


@dataclass(frozen=True)
class OperandSpec:
    """One operand: extents, strides in elements (0 and padding allowed, none negative), dtype name and how it is
    filled.

    Floats are drawn from the standard normal distribution, or its absolute value plus 0.1 ("positive", for log and
    sqrt), integers from `integers`, without its end, bools evenly; `seed` decides the draw.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    values: Values = "normal"
    seed: int = 0
    integers: tuple[int, int] = (-8, 8)

    @property
    def elements(self) -> int:
        """Elements of memory that the operand spans."""
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return 1 + sum((extent - 1) * stride for extent, stride in pairs)


@dataclass(frozen=True)
class PlacedOperand:
    """An operand in memory: the tensor that kernels see, and the storage around it, of which `before` and `after`
    elements hold a pattern that no kernel may change. On CPUs pages without access lie around `memory`.
    """

    tensor: torch.Tensor
    storage: torch.Tensor
    before: int = GUARD
    after: int = GUARD
    memory: GuardedMemory | None = None

    @property
    def inside(self) -> torch.Tensor:
        """The elements between the guards."""
        return self.storage[self.before : len(self.storage) - self.after]

    def to(self, device: torch.device) -> PlacedOperand:
        """A copy on another device, without pages that guard it."""
        storage = self.storage.to(device)
        tensor = storage.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())
        return PlacedOperand(tensor, storage, self.before, self.after)

    def intact(self) -> bool:
        """Whether nothing wrote into the guards."""
        guards = torch.cat((self.storage[: self.before], self.storage[len(self.storage) - self.after :]))
        return bool((guards == _canary(guards.dtype)).all())

    def poison(self) -> None:
        """Fills the operand with values that no kernel computes: NaN, the smallest integer, or True."""
        inside = self.inside
        if inside.dtype.is_floating_point:
            inside.fill_(float("nan"))
        else:
            inside.fill_(True if inside.dtype == torch.bool else torch.iinfo(inside.dtype).min)

    def fill(self, spec: OperandSpec) -> None:
        """Writes the values of a recipe, and the guards."""
        self.storage.fill_(_canary(self.storage.dtype))
        inside, dtype = self.inside, self.storage.dtype
        generator = torch.Generator().manual_seed(spec.seed)
        if spec.values == "zero":
            inside.zero_()
        elif dtype == torch.bool:
            inside.copy_(torch.randint(0, 2, inside.shape, generator=generator, device="cpu"))
        elif not dtype.is_floating_point:
            inside.copy_(torch.randint(*spec.integers, inside.shape, generator=generator, device="cpu"))
        else:
            drawn = torch.randn(inside.shape, generator=generator, dtype=torch.float32, device="cpu")
            inside.copy_(drawn.abs_().add_(0.1) if spec.values == "positive" else drawn)

    def seal(self) -> None:
        """From now on a write to it is a fault, where its memory can do that."""
        if self.memory is not None:
            self.memory.seal()

    def checksum(self) -> int:
        """A sum over all bits, guards included: another one tells that they were written to."""
        octets = self.storage.view(torch.uint8)
        words = octets.view(torch.int32) if len(octets) % 4 == 0 else octets
        return int(words.sum(dtype=torch.int64))


def materialize(spec: OperandSpec) -> PlacedOperand:
    """The operand of a recipe in memory of torch's: the same bits in every process."""
    storage = torch.empty(spec.elements + 2 * GUARD, dtype=dtype_of(spec.dtype).torch, device="cpu")
    operand = PlacedOperand(storage[GUARD : GUARD + spec.elements].as_strided(spec.shape, spec.strides), storage)
    operand.fill(spec)
    return operand


def guarded(spec: OperandSpec, ours: bool = False) -> PlacedOperand:
    """The same operand in memory of its own, between pages that nobody may touch. `ours`: it lies as results and
    temporaries do, else as a user's tensors.

    Raises MemoryError when the memory cannot be had.
    """
    dtype = dtype_of(spec.dtype).torch
    memory = GuardedMemory(spec.elements * dtype.itemsize, ours)
    before, after = memory.before // dtype.itemsize, memory.after // dtype.itemsize
    count = before + spec.elements + after
    storage = torch.frombuffer(memory.memory, dtype=dtype, count=count, offset=memory.offset)
    tensor = storage[before : before + spec.elements].as_strided(spec.shape, spec.strides)
    operand = PlacedOperand(tensor, storage, before, after, memory)
    operand.fill(spec)
    return operand


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: torch has no class of its own for that on a CPU."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _canary(dtype: torch.dtype) -> int | bool:
    return True if dtype == torch.bool else _CANARY


@dataclass(frozen=True)
class Workload:
    """The part that all candidates of one problem share.

    `scalars` are the 64 bits of each scalar argument. `cache` and `launch` say how calls are timed: see `Conditions`. A
    candidate gets `time_limit_s` for its first run and for each timed sample. `device` is where it runs, by its name
    (`runtime.device.driver_of`).
    """

    operands: tuple[OperandSpec, ...]
    checks: tuple[OutputCheck, ...]
    scalars: tuple[int, ...] = ()
    cache: Cache = "warm"
    time_limit_s: float = 10.0
    device: str = "cpu"
    key: str = field(default_factory=lambda: uuid4().hex, compare=False)
    launch: LaunchMode = "graph"

    def under(self, conditions: Conditions) -> Workload:
        """The same work, timed under other conditions."""
        if (self.cache, self.launch) == (conditions.cache, conditions.launch):
            return self
        return replace(self, cache=conditions.cache, launch=conditions.launch, key=uuid4().hex)


@dataclass(frozen=True)
class KernelCall:
    """One kernel call: a `KernelObject` as bytes, its descriptors (`backend/llvm/__init__.py`) and its number of
    workers.
    """

    kernel: bytes
    descriptors: tuple[int, ...]
    workers: int = 1


class SlotAddress(NamedTuple):
    """An address: `offset_bytes` behind the start of slot `slot` of the address table."""

    slot: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class GpuLaunch:
    """One kernel launch on a GPU: a `GpuKernelObject` as bytes, the programs along x, y and z, and its arguments in the
    order of its parameters (`runtime.device.LaunchOf`), addresses as places.
    """

    kernel: bytes
    grid: tuple[int, int, int]
    arguments: tuple[int | float | SlotAddress, ...]


Launches: TypeAlias = tuple[KernelCall, ...] | tuple[GpuLaunch, ...]


@dataclass(frozen=True)
class Case:
    """One candidate: the kernels that compute the workload's outputs, in order, and the temporaries between them.

    `occupancy_limit` is the least of its kernels', on a GPU: see `Metrics`.
    """

    workload: Workload
    launches: Launches
    temporaries: tuple[OperandSpec, ...] = ()
    occupancy_limit: float | None = field(default=None, compare=False)
