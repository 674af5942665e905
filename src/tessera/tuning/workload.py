"""What to run when a candidate is measured: operands, scalars, the check (`Workload`), and one candidate's kernels
(`Case`).

Everything here is plain data that is pickled to a worker process: kernels as object bytes, operands as recipes that
give the same values in every process. The kernels' address table is: the operands, then the scalars, then the
candidate's temporaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias
from uuid import uuid4

import torch

from tessera.dtypes import dtype_of
from tessera.runtime.segments import Segment, round_to_pages
from tessera.tuning.checking import OutputCheck

Values: TypeAlias = Literal["normal", "positive", "zero"]

GUARD = 64
"""Elements before and after every operand that no kernel may change; a multiple of the cache line keeps operands
aligned.
"""

_CANARY = 80
_INTEGER_REACH = 8


@dataclass(frozen=True)
class OperandSpec:
    """One operand: extents, strides in elements (0 and padding allowed, none negative), dtype name and how it is
    filled.

    Floats are drawn from the standard normal distribution, or its absolute value plus 0.1 ("positive", for log and
    sqrt), integers from [-8, 8), bools evenly; `seed` decides the draw.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    values: Values = "normal"
    seed: int = 0

    @property
    def elements(self) -> int:
        """Elements of memory that the operand spans."""
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return 1 + sum((extent - 1) * stride for extent, stride in pairs)


@dataclass(frozen=True)
class Operand:
    """An operand in memory: the tensor that kernels see and the guarded storage around it."""

    tensor: torch.Tensor
    storage: torch.Tensor

    def to(self, device: torch.device) -> Operand:
        """A copy on another device."""
        storage = self.storage.to(device)
        tensor = self.tensor
        return Operand(storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()), storage)

    def intact(self) -> bool:
        """Whether nothing wrote into the guards."""
        guards = torch.cat((self.storage[:GUARD], self.storage[-GUARD:]))
        return bool((guards == _canary(guards.dtype)).all())

    def poison(self) -> None:
        """Fills the operand with values that no kernel computes: NaN, the smallest integer, or True."""
        inside = self.storage[GUARD:-GUARD]
        if inside.dtype.is_floating_point:
            inside.fill_(float("nan"))
        else:
            inside.fill_(True if inside.dtype == torch.bool else torch.iinfo(inside.dtype).min)


def materialize(spec: OperandSpec, ours: bool = False) -> Operand:
    """The operand of a recipe: the same bits in every process.

    `ours` takes memory as Tessera's allocator gives it to results and temporaries: on huge pages where it is large.
    """
    dtype = dtype_of(spec.dtype).torch
    generator = torch.Generator().manual_seed(spec.seed)
    elements = spec.elements + 2 * GUARD
    storage = _segment(elements, dtype) if ours else torch.empty(elements, dtype=dtype)
    storage.fill_(_canary(dtype))
    inside = storage[GUARD : GUARD + spec.elements]
    if spec.values == "zero":
        inside.zero_()
    elif dtype == torch.bool:
        inside.copy_(torch.randint(0, 2, inside.shape, generator=generator))
    elif not dtype.is_floating_point:
        inside.copy_(torch.randint(-_INTEGER_REACH, _INTEGER_REACH, inside.shape, generator=generator))
    else:
        drawn = torch.randn(inside.shape, generator=generator, dtype=torch.float32)
        inside.copy_(drawn.abs_().add_(0.1) if spec.values == "positive" else drawn)
    return Operand(inside.as_strided(spec.shape, spec.strides), storage)


def _segment(elements: int, dtype: torch.dtype) -> torch.Tensor:
    nbytes = round_to_pages(elements * dtype.itemsize)
    try:
        segment = Segment(nbytes)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes:,} bytes cannot be had: {error}") from error
    return torch.frombuffer(segment.memory, dtype=dtype, count=elements, offset=segment.offset)


def _canary(dtype: torch.dtype) -> int | bool:
    return True if dtype == torch.bool else _CANARY


@dataclass(frozen=True)
class Workload:
    """The part that all candidates of one problem share.

    `scalars` are the 64 bits of each scalar argument. `cache` says whether calls find their operands in the caches
    that the call before left ("warm") or in memory ("cold"); on a GPU that is its L2 cache. A candidate gets
    `time_limit_s` for its first run and for each timed sample. `device` is where it runs, by its name
    (`runtime.device.driver_of`).
    """

    operands: tuple[OperandSpec, ...]
    checks: tuple[OutputCheck, ...]
    scalars: tuple[int, ...] = ()
    cache: Literal["warm", "cold"] = "warm"
    time_limit_s: float = 10.0
    device: str = "cpu"
    key: str = field(default_factory=lambda: uuid4().hex, compare=False)


@dataclass(frozen=True)
class Launch:
    """One kernel call: a `KernelObject` as bytes, its descriptors (docs/architecture.md, section 4) and its number of
    workers.
    """

    kernel: bytes
    descriptors: tuple[int, ...]
    workers: int = 1


class Place(NamedTuple):
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
    arguments: tuple[int | float | Place, ...]


Launches: TypeAlias = tuple[Launch, ...] | tuple[GpuLaunch, ...]


@dataclass(frozen=True)
class Case:
    """One candidate: the kernels that compute the workload's outputs, in order, and the temporaries between them."""

    workload: Workload
    launches: Launches
    temporaries: tuple[OperandSpec, ...] = ()
