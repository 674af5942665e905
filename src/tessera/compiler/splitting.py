"""The parts of a fused kernel: what its schedule's `fusion=False` runs instead, one kernel for each operation; and its
stages, which `compiler/stages.py` runs where that is faster.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from tessera.compiler.program import KernelItem, Program, read_program
from tessera.ir.graph import GraphOperation
from tessera.rewrite.fusion import UNLIMITED, fuse_function


def parts_of(item: KernelItem) -> Program | None:
    """The program of a kernel's operations, unfused; None where there is only one of them. Made once."""
    if "parts" not in item.variants:
        item.variants["parts"] = _unfused(item)
    parts = item.variants["parts"]
    assert parts is None or isinstance(parts, Program)
    return parts


def stages_of(item: KernelItem) -> Program | None:
    """The program of a kernel of maps and reductions with these apart from dear maps; None where that is the kernel
    itself. Made once.
    """
    if "stages" not in item.variants:
        program = _unfused(item, UNLIMITED, staged=True)
        item.variants["stages"] = program if program is not None and len(program.items) > 1 else None
    stages = item.variants["stages"]
    assert stages is None or isinstance(stages, Program)
    return stages


def _unfused(item: KernelItem, limit: int = 1, staged: bool = False) -> Program | None:
    """The kernel's operations, fused anew; None where there is only one of them."""
    body = item.operation.body.block
    operations = [op for op in body.ops if isinstance(op, GraphOperation)]
    if sum(op.operator != "constant" for op in operations) < 2:
        return None
    block = Block(arg_types=[argument.type for argument in body.args])
    copies: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args, strict=True))
    for operation in operations:
        copy = operation.clone(copies)
        copy.attributes.pop("mapping", None)
        block.add_op(copy)
    last = body.last_op
    assert last is not None
    results = [copies[value] for value in last.operands]
    block.add_op(ReturnOp(*results))
    kinds = [argument.type for argument in block.args], [value.type for value in results]
    function = FuncOp(item.name, kinds, Region(block))
    function.attributes["argument_dims"] = item.operation.attributes["argument_dims"]
    fuse_function(function, limit, staged=staged)
    return read_program(ModuleOp([function]), (), {})
