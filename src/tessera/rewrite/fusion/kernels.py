"""Fusion, second half: each group becomes one `tessera.schedule.kernel` (layout operations stay as they are).

%0 = graph.matmul(%A, %B)                 %2 = schedule.kernel(%A, %B, %bias) ({
%1 = graph.add(%0, %bias)          ->        %0 = graph.matmul, graph.add, graph.gelu; schedule.yield
%2 = graph.gelu(%1)                       }) {family = "contraction"}
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.ir.attributes import dimension_names, to_attribute
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule import operations as schedule_ir
from tessera.rewrite.engine import Firing, dims_of
from tessera.rewrite.fusion.depth import DEPTH
from tessera.rewrite.fusion.groups import Group, Grouping
from tessera.rewrite.fusion.rows_and_columns import merge_rows_and_columns
from tessera.rewrite.fusion.siblings import TOGETHER
from tessera.rewrite.provenance import inherit
from tessera.rewrite.rules.algebra import made_by

UNLIMITED = 1 << 30


@dataclass(frozen=True)
class Bounds:
    """What may become one kernel: at most `limit` operations of `depth` instructions a vector, and `products` matrix
    products; with `staged` reductions are kernels apart from dear maps, with `crossed` those of rows and of columns one
    kernel.
    """

    limit: int = UNLIMITED
    depth: int = DEPTH
    staged: bool = False
    products: int = TOGETHER
    crossed: bool = True


WIDEST = Bounds()


def fuse_function(function: FuncOp, bounds: Bounds = WIDEST) -> list[Firing]:
    """Replaces the graph operations of `function` by schedule kernels, in an order that respects their dependences.

    Gives the log: one entry for each kernel that holds more than one operation.
    """
    log: list[Firing] = []
    block = function.body.block
    terminator = block.last_op
    assert isinstance(terminator, ReturnOp)
    partition = Grouping(list(block.ops), bounds.limit, bounds.depth, bounds.staged, bounds.products)
    if bounds.crossed and not bounds.staged and bounds.limit > 1:
        merge_rows_and_columns(partition)
    replaced: dict[SSAValue, SSAValue] = {argument: argument for argument in block.args}
    for number, group in enumerate(_ordered(partition)):
        if not group.kind.is_kernel:
            (layout,) = group.operations
            block.detach_op(layout)
            block.insert_op_before(layout, terminator)
            for index, operand in enumerate(layout.operands):
                layout.operands[index] = replaced[operand]
            replaced[layout.result] = layout.result
            continue
        kernel, results = _kernel(group, number, partition, replaced)
        if len(group.operations) > 1:
            names = [operation.operator for operation in group.operations]
            rule = f"fuse-{_family(group)}"
            log.append(Firing(rule, " . ".join(reversed(names)), f"kernel {kernel.sym_name.data}"))
            inherit([kernel], [], rule)
        block.insert_op_before(kernel, terminator)
        replaced.update(zip(results, kernel.results, strict=True))
    for index, operand in enumerate(terminator.operands):
        terminator.operands[index] = replaced[operand]
    for operation in list(block.ops):
        # Constants have been copied into the kernels that use them.
        if isinstance(operation, GraphOperation) and not operation.result.uses.get_length():
            block.erase_op(operation)
    return log


def _ordered(partition: Grouping) -> list[Group]:
    """The groups, each after those it needs; those made first go first otherwise."""
    waiting: dict[Group, int] = {}
    readers: dict[Group, list[Group]] = {group: [] for group in partition.groups}
    for group in partition.groups:
        operands = (operand for operation in group.operations for operand in operation.inputs)
        needed = {partition.group_of.get(operand) for operand in operands} - {group, None}
        waiting[group] = len(needed)
        for producer in needed:
            if producer is not None:
                readers[producer].append(group)
    ready = [(group.number, group) for group in partition.groups if not waiting[group]]
    heapq.heapify(ready)
    ordered: list[Group] = []
    while ready:
        _, group = heapq.heappop(ready)
        ordered.append(group)
        for reader in readers[group]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (reader.number, reader))
    assert len(ordered) == len(partition.groups), "kernels that need each other"
    return ordered


def _kernel(
    group: Group, number: int, partition: Grouping, replaced: dict[SSAValue, SSAValue]
) -> tuple[schedule_ir.ScheduleKernelOp, list[SSAValue]]:
    made = {operation.result for operation in group.operations}
    used = list(dict.fromkeys(v for op in group.operations for v in op.inputs if v not in made))
    inputs = [value for value in used if made_by(value, "constant") is None]
    members = set(group.operations)
    results: list[SSAValue] = [
        operation.result
        for operation in group.operations
        if operation.result in partition.outputs or any(use.operation not in members for use in operation.result.uses)
    ]
    body = Block(arg_types=[value.type for value in inputs])
    inside: dict[SSAValue, SSAValue] = dict(zip(inputs, body.args, strict=True))
    for value in used:
        if (constant := made_by(value, "constant")) is not None:
            copy = constant.clone()
            body.add_op(copy)
            inside[value] = copy.results[0]
    for operation in group.operations:
        block = operation.parent
        assert block is not None
        block.detach_op(operation)
        operation.operands = [inside.get(value, value) for value in operation.operands]
        if operation.result in group.mapping:
            # How the result lies over the domain, for the lowering; -1 where its extent is 1.
            operation.attributes["mapping"] = to_attribute(
                tuple(-1 if axis is None else axis for axis in group.mapping[operation.result])
            )
        body.add_op(operation)
    body.add_op(schedule_ir.ScheduleYieldOp.create(operands=results))
    attributes: dict[str, Attribute] = {
        "sym_name": StringAttr(_kernel_name(group, number)),
        "family": StringAttr(_family(group)),
        "argument_dims": ArrayAttr([dimension_names(dims_of(value)) for value in inputs]),
        "result_dims": ArrayAttr([dimension_names(dims_of(value)) for value in results]),
        "domain": dimension_names(group.domain),
    }
    if group.reduced is not None:
        attributes["reduced"] = ArrayAttr([IntegerAttr(axis, 64) for axis in group.reduced])
    kernel = schedule_ir.ScheduleKernelOp.create(
        operands=[replaced[value] for value in inputs],
        result_types=[value.type for value in results],
        attributes=attributes,
        regions=[Region(body)],
    )
    return kernel, results


def _family(group: Group) -> str:
    if not group.kind.is_walk:
        return group.kind.name
    if group.has_columns:
        return "rows_and_columns"
    if group.reduced is not None and group.reduced[1] < len(group.domain):
        return "column"
    return "row"


def _kernel_name(group: Group, number: int) -> str:
    names = [operation.operator for operation in group.operations]
    return "_".join(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3}_more"]) + f"_{number}"
