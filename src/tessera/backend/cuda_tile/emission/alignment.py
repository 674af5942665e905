"""Which indices of a kernel are multiples of a number, as far as their making shows."""

from __future__ import annotations

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, SSAValue

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
