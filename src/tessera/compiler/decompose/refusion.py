"""Kernels fused anew: the program of a kernel's operations within narrower bounds."""

from __future__ import annotations

from typing import Final

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from tessera.compiler.graph.memo import Table
from tessera.compiler.graph.program import KernelItem, Program, read_program
from tessera.ir.graph.operations import GraphOperation
from tessera.rewrite.fusion.kernels import Bounds, fuse_function
from tessera.rewrite.provenance import inherit
from tessera.scheduling.families.unfused import ONE_BY_ONE

REFUSED: Final = Table[Bounds, "Program | None"]("programs of kernels that were fused anew")


def fused_anew(item: KernelItem, bounds: Bounds) -> Program | None:
    """The program of a kernel's operations within bounds; None where that is the kernel itself. Made once."""
    known = item.memo.of(REFUSED)
    if bounds not in known:
        program = _fused_anew(item, bounds) if _is_several(item) else None
        known[bounds] = program if program is not None and len(program.items) > 1 else None
    return known[bounds]


def parts_of(item: KernelItem) -> Program | None:
    """The program of a kernel's operations, one by one; None where there is only one of them."""
    return fused_anew(item, ONE_BY_ONE)


def _is_several(item: KernelItem) -> bool:
    operations = [op for op in item.operation.body.block.ops if isinstance(op, GraphOperation)]
    return sum(op.operator != "constant" for op in operations) > 1


def _fused_anew(item: KernelItem, bounds: Bounds) -> Program:
    body = item.operation.body.block
    operations = [op for op in body.ops if isinstance(op, GraphOperation)]
    block = Block(arg_types=[argument.type for argument in body.args])
    copies: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args, strict=True))
    for operation in operations:
        copy = operation.clone(copies)
        copy.attributes.pop("mapping", None)
        inherit([copy], [operation])
        block.add_op(copy)
    last = body.last_op
    assert last is not None
    results = [copies[value] for value in last.operands]
    block.add_op(ReturnOp(*results))
    kinds = [argument.type for argument in block.args], [value.type for value in results]
    function = FuncOp(item.name, kinds, Region(block))
    function.attributes["argument_dims"] = item.operation.attributes["argument_dims"]
    fuse_function(function, bounds)
    return read_program(ModuleOp([function]), (), {})
