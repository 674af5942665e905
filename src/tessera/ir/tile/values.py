"""Tile IR's operations on whole tiles that `arith` and `math` lack: the matrix product, reductions, split and join,
transposes, broadcasts, masks, comparisons, selections and casts. All are pure.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, StringAttr, UnitAttr, VectorType
from xdsl.ir import Attribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tessera.ir.tile.access import vector

REDUCE_KINDS = ("add", "mul", "max", "min")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@irdl_op_definition
class MmaOp(IRDLOperation):
    """`acc + a @ b` on tiles: the one matrix operation. With `unsigned_a` the bytes of `a` stand for 0 to 255.

    With `matrix_unit` operands and sums are tiles of the CPU's matrix unit, which takes neighbouring rows of `b` side
    by side, column by column: [k / group, n, group]. On GPUs all products are made by such units where they can be.
    """

    name = "tessera.tile.mma_sync"
    a = operand_def(VectorType)
    b = operand_def(VectorType)
    acc = operand_def(VectorType)
    m = attr_def(IntegerAttr)
    n = attr_def(IntegerAttr)
    k = attr_def(IntegerAttr)
    dtype = attr_def(StringAttr)
    unsigned_a = opt_attr_def(UnitAttr)
    matrix_unit = opt_attr_def(UnitAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        a, b, acc = vector(self.a), vector(self.b), vector(self.acc)
        m, n, k = self.m.value.data, self.n.value.data, self.k.value.data
        group = b.get_shape()[2] if b.get_num_dims() == 3 else 1
        whole = (k, n) if b.get_num_dims() == 2 else (k // group, n, group)
        if a.get_shape() != (m, k) or b.get_shape() != whole or k % group or acc.get_shape() != (m, n):
            raise VerifyException(
                f"mma_sync {m}x{n}x{k} over tiles {a.get_shape()}, {b.get_shape()}, {acc.get_shape()}"
            )
        if self.result.type != acc:
            raise VerifyException("the result has the accumulator's type")
        if (self.matrix_unit is not None) is not (b.get_num_dims() == 3):
            raise VerifyException(f"matrix_unit goes with groups of rows in b, which is {b}")
        if self.unsigned_a is not None and a.element_type != IntegerType(8):
            raise VerifyException(f"unsigned_a is of tiles of i8, not of {a.element_type}")


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Reduces a tile along `axis`, which becomes size 1. `nan = "any"`: `max` and `min` may ignore NaN or give it."""

    name = "tessera.tile.reduce"
    tile = operand_def(VectorType)
    kind = attr_def(StringAttr)
    axis = attr_def(IntegerAttr)
    nan = opt_attr_def(StringAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        tile, result = vector(self.tile), self.result.type
        if self.kind.data not in REDUCE_KINDS:
            raise VerifyException(f"kind {self.kind.data!r} is none of {REDUCE_KINDS}")
        if self.nan is not None and self.nan.data != "any":
            raise VerifyException('nan is "any" or absent')
        axis = self.axis.value.data
        expected = tuple(1 if dim == axis else size for dim, size in enumerate(tile.get_shape()))
        if result.get_shape() != expected or result.element_type != tile.element_type:
            raise VerifyException(f"reducing axis {axis} of {tile} does not give {result}")


@irdl_op_definition
class ElementOp(IRDLOperation):
    """The one element of a tile, as a scalar: what a branch may depend on."""

    name = "tessera.tile.element"
    tile = operand_def(VectorType)
    result = result_def(Attribute)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        whole = vector(self.tile)
        if any(size != 1 for size in whole.get_shape()) or self.result.type != whole.element_type:
            raise VerifyException(f"{whole} is no tile of one element of type {self.result.type}")


@irdl_op_definition
class SplitOp(IRDLOperation):
    """The lower and the upper half of a tile along `axis`."""

    name = "tessera.tile.split"
    tile = operand_def(VectorType)
    axis = attr_def(IntegerAttr)
    lower = result_def(VectorType)
    upper = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        whole, axis = vector(self.tile), self.axis.value.data
        shape = whole.get_shape()
        if not 0 <= axis < len(shape) or shape[axis] % 2:
            raise VerifyException(f"axis {axis} of {whole} has no halves")
        half = VectorType(whole.element_type, [size // (1 + (dim == axis)) for dim, size in enumerate(shape)])
        if self.lower.type != half or self.upper.type != half:
            raise VerifyException(f"the halves of {whole} along axis {axis} are {half}")


@irdl_op_definition
class JoinOp(IRDLOperation):
    """Tiles of one shape side by side along `axis`."""

    name = "tessera.tile.join"
    parts = var_operand_def(VectorType)
    axis = attr_def(IntegerAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        parts, axis = [vector(part) for part in self.parts], self.axis.value.data
        if not parts or any(part != parts[0] for part in parts):
            raise VerifyException("join takes tiles of one type, and at least one")
        shape = parts[0].get_shape()
        if not 0 <= axis < len(shape):
            raise VerifyException(f"{parts[0]} has no axis {axis}")
        sizes = [size * (len(parts) if dim == axis else 1) for dim, size in enumerate(shape)]
        whole = VectorType(parts[0].element_type, sizes)
        if self.result.type != whole:
            raise VerifyException(f"{len(parts)} tiles {parts[0]} along axis {axis} are {whole}")


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """A matrix with rows and columns exchanged."""

    name = "tessera.tile.transpose"
    tile = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        whole = vector(self.tile)
        shape = whole.get_shape()
        if len(shape) != 2 or self.result.type != VectorType(whole.element_type, list(reversed(shape))):
            raise VerifyException(f"transpose of {whole} does not give {self.result.type}")


@irdl_op_definition
class BroadcastOp(IRDLOperation):
    """A scalar, or the size-1 dimensions of a tile, spread over a tile."""

    name = "tessera.tile.broadcast"
    value = operand_def(Attribute)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        source, result = self.value.type, self.result.type
        if not isinstance(source, VectorType):
            if source != result.element_type:
                raise VerifyException(f"scalar {source} spread over {result}")
            return
        shapes = zip(source.get_shape(), result.get_shape(), strict=False)
        if len(source.get_shape()) != len(result.get_shape()) or any(a not in (1, b) for a, b in shapes):
            raise VerifyException(f"{source} does not broadcast to {result}")


@irdl_op_definition
class MaskOp(IRDLOperation):
    """i1 tile: `position + lane < limit` along `axis`."""

    name = "tessera.tile.mask"
    position = operand_def(IndexType)
    limit = operand_def(IndexType)
    axis = attr_def(IntegerAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())


@irdl_op_definition
class IotaOp(IRDLOperation):
    """i64 tile: `offset + lane` along `axis`."""

    name = "tessera.tile.iota"
    offset = operand_def(IndexType)
    axis = attr_def(IntegerAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())


@irdl_op_definition
class CompareOp(IRDLOperation):
    """i1 tile: element by element `a predicate b` (xDSL's arith.cmpi and arith.cmpf give a scalar).

    As in torch: with a NaN only `ne` holds; integers are signed; false < true.
    """

    name = "tessera.tile.compare"
    a = operand_def(VectorType)
    b = operand_def(VectorType)
    predicate = attr_def(StringAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        a, result = vector(self.a), self.result.type
        if self.predicate.data not in COMPARISONS:
            raise VerifyException(f"predicate {self.predicate.data!r} is none of {COMPARISONS}")
        if self.b.type != a or result.get_shape() != a.get_shape() or result.element_type != IntegerType(1):
            raise VerifyException(f"compare of {a} and {self.b.type} does not give {result}")


@irdl_op_definition
class SelectOp(IRDLOperation):
    """Element by element `condition ? a : b` (xDSL's arith.select takes a scalar condition only)."""

    name = "tessera.tile.select"
    condition = operand_def(VectorType)
    a = operand_def(VectorType)
    b = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        condition, result = vector(self.condition), self.result.type
        if self.a.type != result or self.b.type != result or condition.get_shape() != result.get_shape():
            raise VerifyException(f"select of {self.a.type} and {self.b.type} by {condition} does not give {result}")


@irdl_op_definition
class CastOp(IRDLOperation):
    """Converts elements as torch's `to`, between all types (xDSL's arith converts integers as scalars only)."""

    name = "tessera.tile.cast"
    value = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        source, result = vector(self.value), self.result.type
        if source.get_shape() != result.get_shape():
            raise VerifyException(f"cast of {source} does not give {result}")
