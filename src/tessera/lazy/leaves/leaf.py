"""Leaves: what exists before an expression is evaluated. Buffers, and scalar arguments."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from tessera import dtypes
from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.lazy.devices import CPU
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Shape, Structure, contiguous_strides


class Leaf:
    """A buffer or a scalar argument. Two leaves are equal only if they are the same object.

    `structure` holds dtype, shape and strides. `address` is the 8-byte word that kernels find in their table: the
    address of element (0, 0, ...) of a buffer, the bits of a scalar. `owner` keeps the memory alive; for a scalar it
    is the number itself. `version` is the torch tensor's `_version` when it was taken, None where there is nothing
    to compare. `origin` is the tensor's `data_ptr()` then, 0 where the owner keeps the memory that it has: a tensor may
    be given other memory (`tensor.data = ...`), which no version counts, and what it had is freed.
    """

    __slots__ = ("__weakref__", "address", "origin", "owner", "structure", "version")

    def __init__(
        self, structure: Structure, address: int, owner: Any, version: int | None = None, origin: int = 0
    ) -> None:
        self.structure = structure
        self.address = address
        self.owner = owner
        self.version = version
        self.origin = origin

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.structure.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.structure.dtype

    @property
    def strides(self) -> Shape:
        """The strides in elements; 0 along extents of 1."""
        return self.structure.strides

    @property
    def device(self) -> str:
        """The device of the elements; a scalar argument lies with the CPU."""
        return self.structure.device or CPU

    def view(self, structure: Structure, address: int) -> Leaf:
        """Another leaf over the same memory."""
        return Leaf(structure, address, self.owner, self.version, self.origin)

    def span(self) -> tuple[int, int]:
        """The address of the first byte that its elements may lie at, and of the one past the last; equal where there
        are none, and for scalars.
        """
        if self.structure.kind == "scalar" or 0 in self.shape:
            return 0, 0
        last = sum([(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)])
        return self.address, self.address + (last + 1) * self.dtype.itemsize

    def overlaps(self, others: Iterable[Leaf]) -> bool:
        """Whether some of them may lie in the same bytes."""
        first, end = self.span()
        spans = [leaf.span() for leaf in others]
        return any(low < end and first < high for low, high in spans)

    def __repr__(self) -> str:
        return f"<leaf {self.structure.kind} {self.dtype}{list(self.shape)} strides {list(self.strides)}>"


class ShardedLeaf(Leaf):
    """A tensor that is shared out over a mesh; `owner` has its shards. Layout operators on it stay nodes, since no
    single memory has views of it.
    """

    __slots__ = ()


class Placeholder(Leaf):
    """The argument of a function that is being traced: structure only. Layout operators on it stay nodes; see
    `ops.layout.views`.

    It looks like a tensor that was written to, so that the check before every evaluation stops at it, at no cost to
    evaluations without one; see `evaluation.check_versions`.
    """

    __slots__ = ()

    def __init__(self, structure: Structure) -> None:
        super().__init__(structure, 0, _NO_MEMORY, 0)


class Attached(Leaf):
    """A torch tensor that is part of a graph of torch's: one that requires grad, or that a transform of torch's
    (`torch.func`) or its fake tensors stand for. What is computed of it becomes part of that graph (`lazy.attached`).
    Layout operators on it stay nodes.

    As a placeholder it looks like a tensor that was written to, so that no evaluation passes it by.
    """

    __slots__ = ()

    def __init__(self, structure: Structure, tensor: Any) -> None:
        super().__init__(structure, 0, _Held(tensor), 0)

    @property
    def tensor(self) -> Any:
        """The torch tensor."""
        return self.owner.tensor


class _Held:
    """The owner of what torch alone may read."""

    _version: Final = -1

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class _NoMemory:
    """The owner of what has no memory."""

    _version: Final = -1


_NO_MEMORY: Final = _NoMemory()


def result_structure(shape: Shape, dtype: DType, device: str = CPU) -> Structure:
    """The structure of a result: a contiguous buffer. Plans look it up once and make leaves with it."""
    return interning.buffer(shape, contiguous_strides(shape), dtype, device)


_INTEGER_LIMITS: Final = {dtypes.int32: 1 << 31, dtypes.int64: 1 << 63}


def scalar_leaf(value: bool | int | float, dtype: DType) -> Leaf:
    """A scalar argument of `dtype` (fp32, fp64, int32, int64 or bool). An int64 wraps around in int32, as a cast does.

    Raises ArgumentError (E_ARGUMENT) for an integer that int64 does not hold.
    """
    if dtype is dtypes.int32 and _holds(dtypes.int64, value) and not _holds(dtype, value):
        value = dtypes.wrapped(int(value), dtype)
    return Leaf(interning.scalar(dtype), word_maker(dtype)(value), value)


def _holds(dtype: DType, value: float) -> bool:
    return -_INTEGER_LIMITS[dtype] <= value < _INTEGER_LIMITS[dtype]


@cache
def word_maker(dtype: DType) -> Callable[[bool | int | float], int]:
    """The function that gives a number's bits in `dtype`; it raises ArgumentError for integers that do not fit."""
    if dtype.kind == "float":
        return _float32_bits if dtype is dtypes.fp32 else _float64_bits
    if dtype is dtypes.bool_:
        return int
    limit = _INTEGER_LIMITS[dtype]

    def word(value: bool | int | float) -> int:
        number = int(value)
        if not -limit <= number < limit:
            hints = [f"{dtypes.wrapped(number, dtype)} has the same bits"] if 0 < number < 2 * limit else []
            raise ArgumentError(f"{number} does not fit into {dtype}", hints=hints)
        return number & 0xFFFF_FFFF_FFFF_FFFF

    return word


_PACK_FLOAT = struct.Struct("<f").pack
_PACK_DOUBLE = struct.Struct("<d").pack
_UNPACK_32 = struct.Struct("<I").unpack
_UNPACK_64 = struct.Struct("<Q").unpack


def _float32_bits(value: float) -> int:
    try:
        bits: int = _UNPACK_32(_PACK_FLOAT(value))[0]
    except (OverflowError, struct.error):  # the latter of integers that no double holds
        # Beyond the largest float a conversion gives infinity; struct refuses it instead.
        bits = 0x7F80_0000 if value > 0 else 0xFF80_0000
    return bits


def _float64_bits(value: float) -> int:
    try:
        bits: int = _UNPACK_64(_PACK_DOUBLE(value))[0]
    except struct.error:
        bits = 0x7FF0_0000_0000_0000 if value > 0 else 0xFFF0_0000_0000_0000
    return bits
