"""Tile IR: the operations of one kernel, `tessera.tile.*` (semantics in docs/architecture.md, section 3).

Buffers are memrefs, tiles are static-shape vectors, arithmetic is `arith` and `math` on vectors. The
operations here are what those dialects lack: tile access, staging, the matrix multiply, reductions and
the worker grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    AnyFloat,
    DenseArrayBase,
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
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator, NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException

STAGE_LAYOUTS = {"rows": 2, "panels": 3, "row_panels": 3, "panels_vnni": 4}
"""Layout of a stage -> the rank of its memref."""
REDUCE_KINDS = ("add", "mul", "max", "min")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _vector(value: SSAValue) -> VectorType[Attribute]:
    return cast("VectorType[Attribute]", value.type)


def integers(attribute: DenseArrayBase) -> tuple[int, ...]:
    """The values of an `array<i64: ...>` or `array<i1: ...>` attribute."""
    return tuple(int(value) for value in cast("DenseArrayBase[IntegerType]", attribute).get_values())


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a body; its operands are the body's results."""

    name = "tessera.tile.yield"
    values = var_operand_def(Attribute)
    traits = traits_def(IsTerminator())


@irdl_op_definition
class KernelOp(IRDLOperation):
    """One kernel. Block arguments are buffers and scalars; `outputs` are the indices of those written."""

    name = "tessera.tile.kernel"
    sym_name = attr_def(StringAttr)
    outputs = attr_def(DenseArrayBase)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def verify_(self) -> None:
        arguments = self.body.block.args
        for argument in arguments:
            if not isinstance(argument.type, (MemRefType, IntegerType, IndexType, AnyFloat)):
                raise VerifyException(f"kernel argument of type {argument.type}: only memrefs and scalars")
        for index in integers(self.outputs):
            if not 0 <= index < len(arguments) or not isinstance(arguments[index].type, MemRefType):
                raise VerifyException(f"outputs names argument {index}, which is no memref argument")


@irdl_op_definition
class ParallelOp(IRDLOperation):
    """A box of independent work; its body gets `lo, hi` of its share for each dimension.

    Where shares are handed out one after another, `group` steps of the last dimension but one are taken side by side,
    so that they meet in the cache.
    """

    name = "tessera.tile.parallel"
    extents = var_operand_def(IndexType)
    steps = attr_def(DenseArrayBase)
    split = attr_def(IntegerAttr)
    group = opt_attr_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def verify_(self) -> None:
        rank = len(self.extents)
        if len(integers(self.steps)) != rank or len(self.body.block.args) != 2 * rank:
            raise VerifyException("parallel needs one step and two body arguments per extent")
        if not 0 <= self.split.value.data < rank:
            raise VerifyException("split names no dimension")
        if self.group is not None and (self.group.value.data < 1 or rank < 2):
            raise VerifyException("group is the number of steps of the last dimension but one that run side by side")
        if not isinstance(self.parent_op(), KernelOp):
            raise VerifyException("parallel stands only directly inside a kernel")


@irdl_op_definition
class ForOp(IRDLOperation):
    """`for iv = lo to hi step {step}` with loop-carried values."""

    name = "tessera.tile.for"
    lower = operand_def(IndexType)
    upper = operand_def(IndexType)
    initial = var_operand_def(Attribute)
    step = attr_def(IntegerAttr)
    unroll = opt_attr_def(IntegerAttr)
    body = region_def("single_block")
    final = var_result_def(Attribute)

    def verify_(self) -> None:
        if self.step.value.data < 1:
            raise VerifyException("step must be positive")
        types = [value.type for value in self.initial]
        if [value.type for value in self.final] != types or [a.type for a in self.body.block.args[1:]] != types:
            raise VerifyException("loop-carried types of initial values, body arguments and results differ")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or [value.type for value in last.values] != types:
            raise VerifyException("the body must yield the loop-carried values")


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


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Reads a tile; elements outside the buffer's extents read `fill`."""

    name = "tessera.tile.load"
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    dims = attr_def(DenseArrayBase)
    in_bounds = attr_def(DenseArrayBase)
    fill = opt_attr_def(Attribute)
    oob = opt_attr_def(StringAttr)
    tile = result_def(VectorType)

    def verify_(self) -> None:
        _verify_access(self, self.tile.type)
        if self.oob is not None and self.oob.data != "any":
            raise VerifyException('oob is "any" or absent')


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

    def verify_(self) -> None:
        _verify_access(self, _vector(self.value))


@irdl_op_definition
class StageOp(IRDLOperation):
    """Copies a sub-block into a memory level with a layout; the body yields the tile at (i, j)."""

    name = "tessera.tile.stage"
    extents = var_operand_def(IndexType)
    level = attr_def(StringAttr)
    layout = attr_def(StringAttr)
    maximum = attr_def(DenseArrayBase)
    body = region_def("single_block")
    staged = result_def(MemRefType)

    def verify_(self) -> None:
        if len(self.extents) != 2 or len(integers(self.maximum)) != 2 or len(self.body.block.args) != 2:
            raise VerifyException("stage copies a two-dimensional sub-block")
        if self.layout.data not in STAGE_LAYOUTS:
            raise VerifyException(f"layout {self.layout.data!r} is none of {tuple(STAGE_LAYOUTS)}")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or len(last.values) != 1 or not isinstance(last.values[0].type, VectorType):
            raise VerifyException("the body must yield one tile")
        staged = self.staged.type
        if staged.get_num_dims() != STAGE_LAYOUTS[self.layout.data]:
            raise VerifyException(
                f"layout {self.layout.data!r} gives a memref of rank {STAGE_LAYOUTS[self.layout.data]}"
            )
        if staged.element_type != last.values[0].type.element_type:
            raise VerifyException("staged element type differs from the yielded tile's")


@irdl_op_definition
class AllocOp(IRDLOperation):
    """Scratch memory of static shape, private to one worker; its content is undefined at first."""

    name = "tessera.tile.alloc"
    level = attr_def(StringAttr)
    memory = result_def(MemRefType)

    def verify_(self) -> None:
        if any(extent < 0 for extent in self.memory.type.get_shape()):
            raise VerifyException("scratch memory has a static shape")


@irdl_op_definition
class MmaOp(IRDLOperation):
    """`acc + a @ b` on tiles: the one matrix operation."""

    name = "tessera.tile.mma_sync"
    a = operand_def(VectorType)
    b = operand_def(VectorType)
    acc = operand_def(VectorType)
    m = attr_def(IntegerAttr)
    n = attr_def(IntegerAttr)
    k = attr_def(IntegerAttr)
    dtype = attr_def(StringAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        a, b, acc = _vector(self.a), _vector(self.b), _vector(self.acc)
        m, n, k = self.m.value.data, self.n.value.data, self.k.value.data
        if a.get_shape() != (m, k) or b.get_shape() != (k, n) or acc.get_shape() != (m, n):
            raise VerifyException(
                f"mma_sync {m}x{n}x{k} over tiles {a.get_shape()}, {b.get_shape()}, {acc.get_shape()}"
            )
        if self.result.type != acc:
            raise VerifyException("the result has the accumulator's type")


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Reduces a tile along `axis`, which becomes size 1."""

    name = "tessera.tile.reduce"
    tile = operand_def(VectorType)
    kind = attr_def(StringAttr)
    axis = attr_def(IntegerAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        tile, result = _vector(self.tile), self.result.type
        if self.kind.data not in REDUCE_KINDS:
            raise VerifyException(f"kind {self.kind.data!r} is none of {REDUCE_KINDS}")
        axis = self.axis.value.data
        expected = tuple(1 if dim == axis else size for dim, size in enumerate(tile.get_shape()))
        if result.get_shape() != expected or result.element_type != tile.element_type:
            raise VerifyException(f"reducing axis {axis} of {tile} does not give {result}")


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
        a, result = _vector(self.a), self.result.type
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
        condition, result = _vector(self.condition), self.result.type
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
        source, result = _vector(self.value), self.result.type
        if source.get_shape() != result.get_shape():
            raise VerifyException(f"cast of {source} does not give {result}")


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """A hint that a `rows` x `columns` block at the indices will be read, or written, soon."""

    name = "tessera.tile.prefetch"
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    rows = attr_def(IntegerAttr)
    columns = attr_def(IntegerAttr)
    write = opt_attr_def(UnitAttr)


TILE_OPERATIONS: Sequence[type[IRDLOperation]] = (
    YieldOp,
    KernelOp,
    ParallelOp,
    ForOp,
    LoadOp,
    StoreOp,
    StageOp,
    AllocOp,
    MmaOp,
    ReduceOp,
    BroadcastOp,
    MaskOp,
    IotaOp,
    CompareOp,
    SelectOp,
    CastOp,
    PrefetchOp,
)
