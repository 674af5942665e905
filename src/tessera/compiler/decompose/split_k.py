"""Split-K: a matrix product as S products over parts of K, and a kernel that adds them up in a fixed order.

    %p = matmul over a batch of S views of %A and %B: K / S of each      (fp32, [S, batch, m, n])
    %y = epilogue(sum(%p, axis=0))

For products with few tiles and a long K, which would leave most of a GPU idle. The order of the sums depends on the
schedule alone, never on which part is done first. Legal where S divides K (rule "split-k" of `scheduling.gpu_space`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.specs import dtype_of_value
from tessera.compiler.graph.building import element
from tessera.compiler.graph.program import Alignment, KernelItem, Program, align_region, named_dims, read_program
from tessera.dtypes import DType, accumulator
from tessera.ir import graph
from tessera.ir import schedule as schedule_ir
from tessera.ir.attributes import dimension_names, tensor_type
from tessera.ir.graph import GraphOperation
from tessera.rewrite.engine import dims_of
from tessera.rewrite.fusion import fuse_function

PARTS = "split_k"
"""The name of the extent that counts the parts, and of the knob that says how many there are."""


@dataclass(frozen=True, eq=False)
class SplitProduct:
    """A product whose K is split: the kernel of the parts, whose views `part_arrays` makes, and the program that is
    left, over the sums in `workspace` first and then all inputs of the product.
    """

    partial: KernelItem
    rest: Program
    workspace: DType


def split_product(item: KernelItem) -> SplitProduct:
    """The two halves of a product's kernel. Made once."""
    return item.memo.once(_split, item)


def part_arrays(arrays: Sequence[tuple[View, Alignment]], parts: int, rank: int) -> list[tuple[View, Alignment]]:
    """The product's operands, each with the parts of K as a new first dimension of its domain, whose `rank` dimensions
    end in k. They are views of the same memory.
    """
    return [_part(view, alignment, parts, rank - 1) for view, alignment in arrays]


def _part(view: View, alignment: Alignment, parts: int, k: int) -> tuple[View, Alignment]:
    moved: Alignment = tuple([None if axis is None else axis + 1 for axis in alignment])
    if k not in alignment:
        return view, moved
    place = alignment.index(k)
    extent, stride = view.shape[place] // parts, view.strides[place]
    shape = (parts, *view.shape[:place], extent, *view.shape[place + 1 :])
    return view._replace(shape=shape, strides=(extent * stride, *view.strides)), (0, *moved)


def _split(item: KernelItem) -> SplitProduct:
    anchor = item.anchor
    assert anchor is not None
    dtype = accumulator(dtype_of_value(anchor.result))
    return SplitProduct(_partial(item, anchor, dtype), _rest(item, anchor, dtype), dtype)


def _partial(item: KernelItem, anchor: GraphOperation, dtype: DType) -> KernelItem:
    """The kernel of the product and what goes before it, with the sums as its result."""
    needed = _producers(anchor)
    body = item.operation.body.block
    block = Block(arg_types=[argument.type for argument in body.args])
    copies: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args, strict=True))
    for operation in body.ops:
        if operation is anchor:
            made = graph.create(anchor.operator, [copies[v] for v in anchor.inputs], _kind(anchor, dtype))
            made.attributes |= anchor.attributes
            block.add_op(made)
        elif operation in needed:
            block.add_op(operation.clone(copies))
    block.add_op(schedule_ir.YieldOp.create(operands=[made.result]))
    operation = schedule_ir.KernelOp.create(
        operands=[],
        result_types=[],
        attributes={
            **item.operation.attributes,
            "sym_name": StringAttr(f"{item.name}_parts"),
            "result_dims": ArrayAttr([dimension_names(dims_of(anchor.result))]),
        },
        regions=[Region(block)],
    )
    alignments = align_region(operation)
    loads = dict.fromkeys(
        (argument.index, alignment) for argument in block.args for alignment in alignments.uses.get(argument, ())
    )
    stores = (alignments.results[made.result],)
    outputs = (len(item.inputs),)
    return KernelItem(
        operation, f"{item.name}_parts", item.family, item.inputs, outputs, item.domain, None, tuple(loads), stores
    )


def _producers(anchor: GraphOperation) -> set[Operation]:
    """The operations that an operation needs."""
    found: set[Operation] = set()
    pending = [value.owner for value in anchor.inputs]
    while pending:
        owner = pending.pop()
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            pending += [value.owner for value in owner.operands]
    return found


def _kind(anchor: GraphOperation, dtype: DType, *first: None) -> TensorType[Attribute]:
    """The type of the product's sums, with more dimensions before its own."""
    own = anchor.result.type
    assert isinstance(own, TensorType)
    return tensor_type((*first, *[None if extent < 0 else extent for extent in own.get_shape()]), element(dtype))


def _rest(item: KernelItem, anchor: GraphOperation, dtype: DType) -> Program:
    """The sum over the parts, and what goes after the product."""
    body = item.operation.body.block
    workspace = _kind(anchor, dtype, None)
    block = Block(arg_types=[workspace, *[argument.type for argument in body.args]])
    dims = dims_of(anchor.result)
    total = graph.create("sum", [block.args[0]], _kind(anchor, dtype), {"axes": (0,), "keepdims": False})
    total.attributes["dims"] = dimension_names(dims)
    rounded = graph.create("cast", [total.result], anchor.result.type, {"dtype": dtype_of_value(anchor.result).name})
    rounded.attributes["dims"] = dimension_names(dims)
    block.add_op(total)
    last = body.last_op
    assert last is not None
    is_stored = anchor.result in last.operands
    if is_stored:
        block.add_op(rounded)
    copies: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args[1:], strict=True))
    # What follows computes with the sums, unrounded, as it does inside one kernel.
    copies[anchor.result] = total.result
    before = _producers(anchor)
    for operation in body.ops:
        if isinstance(operation, GraphOperation) and operation is not anchor and _is_after(operation, before):
            copy = operation.clone(copies)
            copy.attributes.pop("mapping", None)
            block.add_op(copy)
    results = [rounded.result if value is anchor.result else copies[value] for value in last.operands]
    block.add_op(ReturnOp(*results))
    function = FuncOp(
        f"{item.name}_rest", ([argument.type for argument in block.args], [v.type for v in results]), Region(block)
    )
    own_dims = [dimension_names(names) for names in named_dims(item.operation, "argument_dims")]
    function.attributes["argument_dims"] = ArrayAttr([dimension_names((PARTS, *dims)), *own_dims])
    fuse_function(function)
    return read_program(ModuleOp([function]), (), {})


def _is_after(operation: GraphOperation, before: set[Operation]) -> bool:
    """Whether an operation goes after the product: constants may be needed on both sides."""
    return operation not in before or operation.operator == "constant"
