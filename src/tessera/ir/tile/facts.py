"""What is sure of a kernel before it runs: indices that are multiples of a number, not negative, or inside of a buffer;
loops that run once; strides that a buffer's type promises.
"""

from __future__ import annotations

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IntegerAttr, MemRefType, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute, BlockArgument, SSAValue

from tessera.errors import CompileError
from tessera.ir.tile import operations as tile


def is_multiple(value: SSAValue, of: int) -> bool:
    """Whether an index is a multiple of a number, surely."""
    if of == 1:
        return True
    if isinstance(value, BlockArgument):
        return _argument(value, of)
    owner = value.owner
    if isinstance(owner, arith.ConstantOp):
        return isinstance(owner.value, IntegerAttr) and owner.value.value.data % of == 0
    if isinstance(owner, (arith.AddiOp, arith.SubiOp)):
        return all(is_multiple(operand, of) for operand in owner.operands)
    if isinstance(owner, arith.MuliOp):
        return any(is_multiple(operand, of) for operand in owner.operands)
    return False


def _argument(value: BlockArgument, of: int) -> bool:
    parent = value.block.parent_op()
    if isinstance(parent, tile.ForOp) and value.index == 0:
        return parent.step.value.data % of == 0 and is_multiple(parent.lower, of)
    if isinstance(parent, tile.ParallelOp) and value.index % 2 == 0:
        return tile.integers(parent.steps)[value.index // 2] % of == 0
    return False


def is_natural(value: SSAValue) -> bool:
    """Whether an index cannot be negative, as far as its making shows."""
    owner = value.owner
    if isinstance(value, BlockArgument):
        parent = value.block.parent_op()
        if isinstance(parent, tile.ForOp):
            return value.index == 0 and is_natural(parent.lower)
        return isinstance(parent, (tile.ParallelOp, tile.StageOp))
    if isinstance(owner, arith.ConstantOp):
        return isinstance(owner.value, IntegerAttr) and owner.value.value.data >= 0
    if isinstance(owner, (arith.AddiOp, arith.MuliOp, arith.DivSIOp, arith.MinSIOp)):
        return all(is_natural(operand) for operand in owner.operands)
    if isinstance(owner, arith.MaxSIOp):
        return any(is_natural(operand) for operand in owner.operands)
    return isinstance(owner, memref.DimOp)


def begins_inside(value: SSAValue, multiplies: bool) -> bool:
    """Whether a tile that begins at an index has elements inside of any buffer that is walked along that axis.

    An index that counts up to an extent is below it: buffers of one launch that share an axis have its extent. A tile
    at 0 lies outside of a buffer without elements along the axis; of kernels that multiply (`multiplies`) such an axis
    is one of the result too, which then has no elements, and nothing is launched.
    """
    if isinstance(value, BlockArgument):
        parent = value.block.parent_op()
        if isinstance(parent, tile.ForOp) and value.index == 0:
            return _is_extent(parent.upper)
        return (
            isinstance(parent, tile.ParallelOp)
            and value.index % 2 == 0
            and _is_extent(parent.extents[value.index // 2])
        )
    owner = value.owner
    return multiplies and isinstance(owner, arith.ConstantOp) and is_multiple(value, 1 << 62)


def _is_extent(limit: SSAValue) -> bool:
    """Whether a bound is at most an extent of a buffer."""
    if isinstance(limit, BlockArgument):
        parent = limit.block.parent_op()
        return isinstance(parent, tile.ParallelOp) and _is_extent(parent.extents[limit.index // 2])
    owner = limit.owner
    if isinstance(owner, arith.MinSIOp):
        return any(_is_extent(operand) for operand in owner.operands)
    return isinstance(owner, memref.DimOp)


def runs_once(loop: tile.ForOp) -> bool:
    """Whether a loop walks a step of the grid along one dimension, in steps no smaller than that: it runs once."""
    lower, upper = loop.lower, loop.upper
    if not (isinstance(lower, BlockArgument) and isinstance(upper, BlockArgument) and lower.block is upper.block):
        return False
    grid = lower.block.parent_op()
    if not isinstance(grid, tile.ParallelOp) or lower.index % 2 or upper.index != lower.index + 1:
        return False
    return loop.step.value.data >= tile.integers(grid.steps)[lower.index // 2]


def static_strides(kind: MemRefType[Attribute]) -> list[int | None]:
    """The strides that a type promises; of a type without a layout, those of a contiguous buffer as far as
    known. None where it leaves them open. Raises CompileError for a layout that is no list of strides.
    """
    if isinstance(kind.layout, StridedLayoutAttr):
        return [None if isinstance(stride, NoneAttr) else stride.data for stride in kind.layout.strides]
    if not isinstance(kind.layout, NoneAttr):
        raise CompileError(f"the layout of {kind} is no list of strides")
    strides: list[int | None] = []
    step: int | None = 1
    for extent in reversed(kind.get_shape()):
        strides.append(step)
        step = None if step is None or extent < 0 else step * extent
    return strides[::-1]
