"""Tile IR's memory operations: those that read and write tiles of buffers, and hints about it.

`access` says how a tile is reached: by a pointer for each element (absent), or by a descriptor that the copy engine of
a GPU walks, made by the kernel itself ("device_descriptor") or by whoever launches it ("host_descriptor"). Beyond a
descriptor's extents there are zeros. `eviction` says whether the caches should keep what was touched ("last") or give
it up ("first"). Neither changes what is read or written; a backend without the like ignores them.
"""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    UnitAttr,
    VectorType,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

HOST_DESCRIPTOR = "host_descriptor"
DESCRIPTORS = ("device_descriptor", HOST_DESCRIPTOR)
"""The kinds of descriptors that a load or store may name as its `access`."""
EVICTIONS = ("first", "last")


def vector(value: SSAValue) -> VectorType[Attribute]:
    """The type of a value that is a tile."""
    return cast("VectorType[Attribute]", value.type)


def integers(attribute: DenseArrayBase) -> tuple[int, ...]:
    """The values of an `array<i64: ...>` or `array<i1: ...>` attribute."""
    return tuple(int(value) for value in cast("DenseArrayBase[IntegerType]", attribute).get_values())


def _verify_access(op: LoadOp | StoreOp, tile: VectorType[Attribute]) -> None:
    buffer = cast("MemRefType[Attribute]", op.buffer.type)
    if len(op.indices) != buffer.get_num_dims():
        raise VerifyException(f"{len(op.indices)} indices into a buffer of rank {buffer.get_num_dims()}")
    dims, bounds = integers(op.dims), integers(op.in_bounds)
    shape = tile.get_shape()
    if len(dims) != len(shape) or len(bounds) != len(shape):
        raise VerifyException("dims and in_bounds need one entry per tile dimension")
    walked = [dim for dim in dims if dim >= 0]
    if len(set(walked)) != len(walked) or any(dim >= buffer.get_num_dims() for dim in walked):
        raise VerifyException(f"dims {dims} do not name distinct dimensions of the buffer")
    for dim, size in zip(dims, shape, strict=True):
        if dim < 0 and size != 1:
            raise VerifyException("a tile dimension that walks no buffer dimension has size 1")
    if tile.element_type != buffer.element_type:
        raise VerifyException(f"tile of {tile.element_type} over a buffer of {buffer.element_type}")
    _verify_hints(op)


def _verify_hints(op: LoadOp | StoreOp) -> None:
    if op.access is not None and op.access.data not in DESCRIPTORS:
        raise VerifyException(f"access is absent or one of {DESCRIPTORS}, not {op.access.data!r}")
    if op.eviction is not None and op.eviction.data not in EVICTIONS:
        raise VerifyException(f"eviction is absent or one of {EVICTIONS}, not {op.eviction.data!r}")
    if op.access is not None and op.eviction is not None:
        raise VerifyException("a descriptor's copies take no eviction policy")


def _verify_steps(op: LoadOp) -> None:
    if op.steps is None:
        return
    steps = integers(op.steps)
    if len(steps) != len(integers(op.dims)) or any(step < 1 for step in steps):
        raise VerifyException(f"steps {steps} need one positive entry per tile dimension")
    if op.access is not None:
        raise VerifyException("a descriptor's copies take neighbouring elements")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Reads a tile; elements outside the buffer's extents read `fill`.

    `steps`, where given, is the distance in the buffer of neighbours along each tile dimension; else they are
    neighbours there, too.
    """

    name = "tessera.tile.load"
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    dims = attr_def(DenseArrayBase)
    in_bounds = attr_def(DenseArrayBase)
    fill = opt_attr_def(Attribute)
    oob = opt_attr_def(StringAttr)
    access = opt_attr_def(StringAttr)
    eviction = opt_attr_def(StringAttr)
    steps = opt_attr_def(DenseArrayBase)
    tile = result_def(VectorType)

    def verify_(self) -> None:
        _verify_access(self, self.tile.type)
        if self.oob is not None and self.oob.data != "any":
            raise VerifyException('oob is "any" or absent')
        zero = not isinstance(self.fill, (FloatAttr, IntegerAttr)) or self.fill.value.data == 0
        if self.access is not None and not zero:
            raise VerifyException("beyond a descriptor's extents there are zeros: fill must be 0")
        _verify_steps(self)


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Writes a tile; elements outside the buffer's extents are dropped."""

    name = "tessera.tile.store"
    value = operand_def(VectorType)
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    dims = attr_def(DenseArrayBase)
    in_bounds = attr_def(DenseArrayBase)
    nontemporal = opt_attr_def(UnitAttr)
    access = opt_attr_def(StringAttr)
    eviction = opt_attr_def(StringAttr)

    def verify_(self) -> None:
        _verify_access(self, vector(self.value))


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """A hint that a `rows` x `columns` block at the indices will be read, or written, soon."""

    name = "tessera.tile.prefetch"
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    rows = attr_def(IntegerAttr)
    columns = attr_def(IntegerAttr)
    write = opt_attr_def(UnitAttr)
