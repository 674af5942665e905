"""Tile IR: the operations of one kernel, `tessera.tile.*` (semantics in docs/architecture.md, section 3).

Buffers are memrefs, tiles are static-shape vectors, arithmetic is `arith` and `math` on vectors. The
operations here are what those dialects lack: staging, the matrix multiply, reductions and the worker grid;
`tile_access` has those that reach memory.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from xdsl.ir import Attribute
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

from tessera.ir.tile_access import LoadOp, PrefetchOp, StoreOp, integers, vector

__all__ = [
    "COMPARISONS",
    "GRIDS",
    "REDUCE_KINDS",
    "STAGE_LAYOUTS",
    "TILE_OPERATIONS",
    "AllocOp",
    "BroadcastOp",
    "CastOp",
    "CompareOp",
    "ForOp",
    "IotaOp",
    "KernelOp",
    "LoadOp",
    "MaskOp",
    "MmaOp",
    "ParallelOp",
    "PrefetchOp",
    "ReduceOp",
    "SelectOp",
    "SplitOp",
    "StageOp",
    "StoreOp",
    "YieldOp",
    "integers",
]

STAGE_LAYOUTS = {"rows": 2, "panels": 3, "row_panels": 3, "panels_vnni": 4}
"""Layout of a stage -> the rank of its memref."""
REDUCE_KINDS = ("add", "mul", "max", "min")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
GRIDS = ("persistent", "fused")
"""How the programs of a GPU may share out the steps of a grid, but for one program per step."""


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a body; its operands are the body's results."""

    name = "tessera.tile.yield"
    values = var_operand_def(Attribute)
    traits = traits_def(IsTerminator())


@irdl_op_definition
class KernelOp(IRDLOperation):
    """One kernel. Block arguments are buffers and scalars; `outputs` are the indices of those written.

    `warps`, `pipeline_depth` (stages of loads in flight), `max_registers` (of one thread) and `accumulators` (buffers
    that a matrix unit's sums take turns in) say how a GPU's compiler is asked to compile it. `divisors`, one per
    argument, promises of each buffer that its address, its run-time strides and its extent along stride 1 are
    multiples of so many elements.
    """

    name = "tessera.tile.kernel"
    sym_name = attr_def(StringAttr)
    outputs = attr_def(DenseArrayBase)
    warps = opt_attr_def(IntegerAttr)
    pipeline_depth = opt_attr_def(IntegerAttr)
    max_registers = opt_attr_def(IntegerAttr)
    accumulators = opt_attr_def(IntegerAttr)
    divisors = opt_attr_def(DenseArrayBase)
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
        for hint in ("warps", "pipeline_depth", "max_registers", "accumulators"):
            value = self.attributes.get(hint)
            if isinstance(value, IntegerAttr) and value.value.data < 1:
                raise VerifyException(f"{hint} is a positive number")
        divisors = (1,) * len(arguments) if self.divisors is None else integers(self.divisors)
        if len(divisors) != len(arguments) or any(divisor < 1 for divisor in divisors):
            raise VerifyException("divisors has a positive number for each argument")


@irdl_op_definition
class ParallelOp(IRDLOperation):
    """A box of independent work; its body gets `lo, hi` of its share for each dimension.

    Where shares are handed out one after another, `group` steps of the last dimension but one are taken side by side,
    so that they meet in the cache. With a `grid`, a fixed number of programs walk all steps: one step after another
    ("persistent"), or with the loops inside joined to the walk, so that the next step's loads begin before this one
    ends ("fused"). `warp_specialize` asks for warps of their own for the loads of a walk.
    """

    name = "tessera.tile.parallel"
    extents = var_operand_def(IndexType)
    steps = attr_def(DenseArrayBase)
    split = attr_def(IntegerAttr)
    group = opt_attr_def(IntegerAttr)
    grid = opt_attr_def(StringAttr)
    warp_specialize = opt_attr_def(UnitAttr)
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
        if self.grid is not None and self.grid.data not in GRIDS:
            raise VerifyException(f"grid is absent or one of {GRIDS}, not {self.grid.data!r}")
        if self.warp_specialize is not None and self.grid is None:
            raise VerifyException("warp_specialize of a parallel without a grid stands on the loop inside")
        if not isinstance(self.parent_op(), KernelOp):
            raise VerifyException("parallel stands only directly inside a kernel")


@irdl_op_definition
class ForOp(IRDLOperation):
    """`for iv = lo to hi step {step}` with loop-carried values. `warp_specialize` asks for warps of their own for its
    loads.
    """

    name = "tessera.tile.for"
    lower = operand_def(IndexType)
    upper = operand_def(IndexType)
    initial = var_operand_def(Attribute)
    step = attr_def(IntegerAttr)
    unroll = opt_attr_def(IntegerAttr)
    warp_specialize = opt_attr_def(UnitAttr)
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
        a, b, acc = vector(self.a), vector(self.b), vector(self.acc)
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
        tile, result = vector(self.tile), self.result.type
        if self.kind.data not in REDUCE_KINDS:
            raise VerifyException(f"kind {self.kind.data!r} is none of {REDUCE_KINDS}")
        axis = self.axis.value.data
        expected = tuple(1 if dim == axis else size for dim, size in enumerate(tile.get_shape()))
        if result.get_shape() != expected or result.element_type != tile.element_type:
            raise VerifyException(f"reducing axis {axis} of {tile} does not give {result}")


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
    SplitOp,
    BroadcastOp,
    MaskOp,
    IotaOp,
    CompareOp,
    SelectOp,
    CastOp,
    PrefetchOp,
)
