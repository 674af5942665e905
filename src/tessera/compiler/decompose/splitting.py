"""What runs instead of a fused kernel: one kernel for each operation where its schedule says `fusion=False`; its stages
where `stages.py` finds them faster; a kernel for each of its products where these are not formed together.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from tessera.compiler.graph.program import KernelItem, Program, read_program
from tessera.ir.graph import GraphOperation
from tessera.rewrite.fusion import UNLIMITED, fuse_function
from tessera.rewrite.provenance import inherit
from tessera.rewrite.siblings import TOGETHER


def parts_of(item: KernelItem) -> Program | None:
    """The program of a kernel's operations, unfused; None where there is only one of them. Made once."""
    if "parts" not in item.variants:
        operations = [op for op in item.operation.body.block.ops if isinstance(op, GraphOperation)]
        several = sum(op.operator != "constant" for op in operations) > 1
        item.variants["parts"] = _refused(item, limit=1) if several else None
    parts = item.variants["parts"]
    assert parts is None or isinstance(parts, Program)
    return parts


def stages_of(item: KernelItem) -> Program | None:
    """The program of a kernel with its reductions apart from dear maps and products; None where that is the kernel
    itself. Made once.
    """
    if "stages" not in item.variants:
        program = _refused(item, staged=True)
        item.variants["stages"] = program if len(program.items) > 1 else None
    stages = item.variants["stages"]
    assert stages is None or isinstance(stages, Program)
    return stages


def products_apart(item: KernelItem) -> Program:
    """The program of a kernel with several products, fused anew with one product a kernel. Made once."""
    if "apart" not in item.variants:
        item.variants["apart"] = _refused(item, products=1)
    apart = item.variants["apart"]
    assert isinstance(apart, Program)
    return apart


def rows_apart(item: KernelItem) -> Program:
    """The norm of a product's rows, and the product with what else is fused to it."""
    program = stages_of(item)
    assert program is not None, f"{item.name} is one stage"
    return program


def _refused(item: KernelItem, limit: int = UNLIMITED, staged: bool = False, products: int = TOGETHER) -> Program:
    """A kernel's operations, fused anew."""
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
    fuse_function(function, limit, staged=staged, products=products)
    return read_program(ModuleOp([function]), (), {})
