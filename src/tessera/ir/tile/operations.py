"""Tile IR: the operations of one kernel, `tessera.tile.*` (docs/ir.md says what each means).

Buffers are memrefs, tiles are static-shape vectors, arithmetic is `arith` and `math` on vectors. The
operations here are what those dialects lack: kernels, the worker grid, loops and scratch memory; `access` has
those that reach buffers, `values` those that compute tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
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
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

from tessera.errors import CompileError
from tessera.ir.tile.access import LoadOp, PrefetchOp, StoreOp, integers
from tessera.ir.tile.values import (
    COMPARISONS,
    REDUCE_KINDS,
    BroadcastOp,
    CastOp,
    CompareOp,
    ElementOp,
    IotaOp,
    JoinOp,
    MaskOp,
    MmaOp,
    ReduceOp,
    SelectOp,
    SplitOp,
    TransposeOp,
)

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
    "ElementOp",
    "ForOp",
    "IotaOp",
    "JoinOp",
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
    "TransposeOp",
    "YieldOp",
    "find_kernel",
    "integers",
]

STAGE_LAYOUTS = {"rows": 2, "panels": 3, "row_panels": 3, "panels_vnni": 4}
"""Layout of a stage -> the rank of its memref."""
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
    that a matrix unit's sums take turns in) say how a GPU's compiler is asked to compile it. `divisors` says what
    the kernel may rely on of its arguments (`ir/tile/divisors.py`). `timed` asks for clock reads around each macro tile
    (`backend/tile_times.py`). `note` is for readers of what a backend prints, and means nothing.
    """

    name = "tessera.tile.kernel"
    sym_name = attr_def(StringAttr)
    outputs = attr_def(DenseArrayBase)
    warps = opt_attr_def(IntegerAttr)
    pipeline_depth = opt_attr_def(IntegerAttr)
    max_registers = opt_attr_def(IntegerAttr)
    accumulators = opt_attr_def(IntegerAttr)
    divisors = opt_attr_def(ArrayAttr)
    timed = opt_attr_def(UnitAttr)
    note = opt_attr_def(StringAttr)
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
        if self.divisors is not None:
            _verify_divisors(self.divisors, arguments)


def _verify_divisors(divisors: ArrayAttr[Attribute], arguments: Sequence[SSAValue]) -> None:
    if len(divisors) != len(arguments):
        raise VerifyException("divisors has an array for each argument")
    for number, (each, argument) in enumerate(zip(divisors, arguments, strict=True)):
        words = 1 + 2 * argument.type.get_num_dims() if isinstance(argument.type, MemRefType) else 0
        if not isinstance(each, DenseArrayBase) or len(integers(each)) != words or min(integers(each), default=1) < 1:
            raise VerifyException(
                f"divisors of argument {number} are {words} positive numbers: for the address, extents and strides of "
                "a buffer, none for a scalar"
            )


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
    loads. A turn of a loop marked `macro_tile` is a tile of the schedule, the unit that timed builds time.
    """

    name = "tessera.tile.for"
    lower = operand_def(IndexType)
    upper = operand_def(IndexType)
    initial = var_operand_def(Attribute)
    step = attr_def(IntegerAttr)
    unroll = opt_attr_def(IntegerAttr)
    warp_specialize = opt_attr_def(UnitAttr)
    macro_tile = opt_attr_def(UnitAttr)
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
    """Scratch memory of static shape, private to one worker; its content is undefined at first. Several indices may
    name one element, where its strides say so: a window that walks overlapping pieces.
    """

    name = "tessera.tile.alloc"
    level = attr_def(StringAttr)
    memory = result_def(MemRefType)

    def verify_(self) -> None:
        if any(extent < 0 for extent in self.memory.type.get_shape()):
            raise VerifyException("scratch memory has a static shape")


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
    ElementOp,
    SplitOp,
    JoinOp,
    TransposeOp,
    BroadcastOp,
    MaskOp,
    IotaOp,
    CompareOp,
    SelectOp,
    CastOp,
    PrefetchOp,
)


def find_kernel(module: ModuleOp) -> KernelOp:
    """The one kernel of a module. Raises CompileError when there is none or several."""
    kernels = [op for op in module.body.walk() if isinstance(op, KernelOp)]
    if len(kernels) != 1:
        names = ", ".join(kernel.sym_name.data for kernel in kernels) or "none"
        raise CompileError(f"a module with exactly one tessera.tile.kernel is meant; this one has {names}")
    return kernels[0]
