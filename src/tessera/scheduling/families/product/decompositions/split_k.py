"""Split-K: a matrix product as S products over parts of K, and a kernel that adds them up in a fixed order.

    %p = matmul over a batch of S views of %A and %B: K / S of each      (fp32, [S, batch, m, n])
    %y = epilogue(sum(%p, axis=0))

For products with few tiles and a long K, which would leave most of a GPU idle. The order of the sums depends on the
schedule alone, never on which part is done first. Legal where S divides K (rule "split-k" of `product/gpu/rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tessera.dtypes import DType, accumulator
from tessera.errors import ScheduleError
from tessera.ir.attributes import ELEMENT_TYPES, dimension_names, tensor_type
from tessera.ir.graph import operations as graph
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule import operations as schedule_ir
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.rewrite.engine import dims_of
from tessera.rewrite.fusion.kernels import fuse_function
from tessera.rewrite.fusion.reasons import operations_in
from tessera.rewrite.fusion.siblings import products_of
from tessera.rewrite.rules.algebra import dtype
from tessera.scheduling.families.decomposition import DecomposableCall, Decomposition, Function, Parts, Steps, Workspace

PARTS: Final = "split_k"
"""The name of the extent that counts the parts, and of the knob that says how many there are."""
SUMS: Final = "sums"


@dataclass(frozen=True, eq=False)
class SplitProduct:
    """A product whose K is split: the kernel of the parts, and the function that is left, over their `sums` first and
    then all inputs of the product; the names of a part's extents.
    """

    partial: ScheduleKernelOp
    rest: ModuleOp
    dims: tuple[str, ...]
    sums: DType


def split_product(kernel: ScheduleKernelOp) -> SplitProduct:
    """The two halves of a product's kernel."""
    (product,) = products_of(operations_in(kernel))
    sums = accumulator(dtype(product.result))
    return SplitProduct(_partial(kernel, product, sums), _rest(kernel, product, sums), dims_of(product.result), sums)


def _partial(kernel: ScheduleKernelOp, product: GraphOperation, sums: DType) -> ScheduleKernelOp:
    """The kernel of the product and what goes before it, with the sums as its result."""
    needed = _producers(product)
    body = kernel.body.block
    block = Block(arg_types=[argument.type for argument in body.args])
    copies: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args, strict=True))
    for operation in body.ops:
        if operation is product:
            made = graph.create(product.operator, [copies[v] for v in product.inputs], _kind(product, sums))
            made.attributes |= product.attributes
            block.add_op(made)
        elif operation in needed:
            block.add_op(operation.clone(copies))
    block.add_op(schedule_ir.ScheduleYieldOp.create(operands=[made.result]))
    attributes = {
        **kernel.attributes,
        "sym_name": StringAttr(f"{kernel.sym_name.data}_parts"),
        "result_dims": ArrayAttr([dimension_names(dims_of(product.result))]),
    }
    return ScheduleKernelOp.create(operands=[], result_types=[], attributes=attributes, regions=[Region(block)])


def _producers(product: GraphOperation) -> set[Operation]:
    """The operations that an operation needs."""
    found: set[Operation] = set()
    pending = [value.owner for value in product.inputs]
    while pending:
        owner = pending.pop()
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            pending += [value.owner for value in owner.operands]
    return found


def _kind(product: GraphOperation, sums: DType, *first: None) -> TensorType[Attribute]:
    """The type of the product's sums, with more dimensions before its own."""
    own = product.result.type
    assert isinstance(own, TensorType)
    return tensor_type(
        (*first, *[None if extent < 0 else extent for extent in own.get_shape()]), ELEMENT_TYPES[sums.name]
    )


def _rest(kernel: ScheduleKernelOp, product: GraphOperation, sums: DType) -> ModuleOp:
    """The sum over the parts, and what goes after the product."""
    body = kernel.body.block
    workspace = _kind(product, sums, None)
    block = Block(arg_types=[workspace, *[argument.type for argument in body.args]])
    dims = dims_of(product.result)
    total = graph.create("sum", [block.args[0]], _kind(product, sums), {"axes": (0,), "keepdims": False})
    total.attributes["dims"] = dimension_names(dims)
    rounded = graph.create("cast", [total.result], product.result.type, {"dtype": dtype(product.result).name})
    rounded.attributes["dims"] = dimension_names(dims)
    block.add_op(total)
    last = body.last_op
    assert last is not None
    is_stored = product.result in last.operands
    if is_stored:
        block.add_op(rounded)
    copies: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args[1:], strict=True))
    # What follows computes with the sums, unrounded, as it does inside one kernel.
    copies[product.result] = total.result
    before = _producers(product)
    for operation in body.ops:
        if isinstance(operation, GraphOperation) and operation is not product and _is_after(operation, before):
            copy = operation.clone(copies)
            copy.attributes.pop("mapping", None)
            block.add_op(copy)
    results = [rounded.result if value is product.result else copies[value] for value in last.operands]
    block.add_op(ReturnOp(*results))
    function = FuncOp(
        f"{kernel.sym_name.data}_rest",
        ([argument.type for argument in block.args], [v.type for v in results]),
        Region(block),
    )
    own_dims = kernel.attributes["argument_dims"]
    assert isinstance(own_dims, ArrayAttr)
    function.attributes["argument_dims"] = ArrayAttr([dimension_names((PARTS, *dims)), *own_dims.data])
    fuse_function(function)
    return ModuleOp([function])


def _is_after(operation: GraphOperation, before: set[Operation]) -> bool:
    """Whether an operation goes after the product: constants may be needed on both sides."""
    return operation not in before or operation.operator == "constant"


def _steps(case: DecomposableCall) -> Steps:
    split, parts = case.once_of_kernel(split_product), case.schedule.integer(PARTS)
    depth = case.extents["k"]
    if depth % parts:  # what the rule says; here wrong values would come of it
        raise ScheduleError(
            f"{case.kernel.sym_name.data}: K of {depth} is not cut into {parts} equal parts", hints=["rule split-k"]
        )
    shape = (parts, *[case.named[name] for name in split.dims])
    return Steps(
        (
            Parts(split.partial, PARTS, parts, SUMS, case.schedule.replace(split_k=1)),
            Function(split.rest, (SUMS,), {PARTS: parts}),
        ),
        {SUMS: Workspace(split.sums, shape)},
    )


SPLIT_K = Decomposition(
    name="split-k",
    why="the schedule cuts a long K into parts: few tiles would leave most multiprocessors idle",
    when="schedule",
    applies=lambda case: case.schedule.get(PARTS, 1) != 1,
    steps=_steps,
)
