"""Why two kernels are not one: for each tensor that goes from kernel to kernel through memory, the rule that keeps it.

The rules are those of `groups.py`, and of the kinds of `ops/families.py`, asked again of what has been fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from tessera.ir.attributes import names_of
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.ops.families import FAMILIES, GROUP_KINDS, REDUCTION, GroupKind
from tessera.ops.record import OPERATORS, family_of
from tessera.rewrite.fusion.depth import DEPTH, instructions_of


@dataclass(frozen=True)
class Apart:
    """A tensor between two kernels, and the rule by which it goes through memory."""

    value: SSAValue
    producer: str
    consumer: str
    rule: str
    reason: str


_REASONS = {
    "attention-is-alone": "neither operands nor the result of attention are computed on the way",
    "two-products": "a kernel has one matrix product, or two of one A that meet in a map, one convolution or reduction "
    "over windows",
    "product-is-needed-elsewhere": "a product stays in registers only for one map that reads nothing else of it",
    "rows-of-a-product": "a register tile holds no whole rows, which a reduction needs",
    "operand-is-shared": "what several kernels read is computed once, not while each packs it",
    "operand-is-dear": "an operand is packed several times: only cheap maps are computed on the way",
    "reduced-operand": "only norms of rows are reduced on the way into a product",
    "windows-overlap": "an element is in several windows, and would be computed for each of them",
    "another-domain": "the kernels walk other dimensions",
    "another-reduction": "a kernel reduces one range of dimensions",
    "depth": f"compilers take long for so many instructions a vector: more than {DEPTH}, half of that after a product",
    "order": "something between them needs the one and is needed by the other, or reads it across",
}


def kept_apart(function: FuncOp) -> Iterator[Apart]:
    """The tensors of a fused function that one kernel makes and another one reads."""
    for consumer in function.body.block.ops:
        if not isinstance(consumer, ScheduleKernelOp):
            continue
        for value in dict.fromkeys(consumer.inputs):
            producer = value.owner
            if isinstance(producer, ScheduleKernelOp):
                rule = _rule(producer, consumer, value)
                yield Apart(value, producer.sym_name.data, consumer.sym_name.data, rule, _REASONS[rule])


def operations_in(kernel: ScheduleKernelOp) -> list[GraphOperation]:
    """The graph operations of a kernel, without constants."""
    inside = (op for op in kernel.body.block.ops if isinstance(op, GraphOperation))
    return [op for op in inside if op.operator != "constant"]


def _rule(producer: ScheduleKernelOp, consumer: ScheduleKernelOp, value: SSAValue) -> str:
    first, second = _kind(producer), _kind(consumer)
    if not (first.share and second.share):
        return "attention-is-alone"
    if second.sums_in_registers:
        if first.sums_in_registers:
            return "two-products"
        return _before_product(producer, value) if FAMILIES[second.name].multiplies else "windows-overlap"
    if first.sums_in_registers:
        if "reduced" in consumer.attributes:
            return "rows-of-a-product"
        users = {use.operation for use in value.uses}
        if len(users) > 1 or any(isinstance(user, ReturnOp) for user in users):
            return "product-is-needed-elsewhere"
    if names_of(producer.attributes["domain"]) != names_of(consumer.attributes["domain"]):
        return "another-domain"
    reductions = {kernel.attributes["reduced"] for kernel in (producer, consumer) if "reduced" in kernel.attributes}
    if len(reductions) > 1:
        return "another-reduction"
    together = sum(instructions_of(op) for kernel in (producer, consumer) for op in operations_in(kernel))
    return "depth" if together > first.share * DEPTH else "order"


def _kind(kernel: ScheduleKernelOp) -> GroupKind:
    """What the kernel was as a group; one of rows or columns may have been of maps alone."""
    return GROUP_KINDS.get(kernel.family.data, REDUCTION)


def _before_product(producer: ScheduleKernelOp, value: SSAValue) -> str:
    if value.uses.get_length() > 1:
        return "operand-is-shared"
    if "reduced" in producer.attributes:
        return "reduced-operand"
    dear = any(not OPERATORS[op.operator].cheap for op in operations_in(producer))
    return "operand-is-dear" if dear else "order"


def kept_inside(kernel: ScheduleKernelOp) -> list[GraphOperation]:
    """The operations of a kernel whose results no memory holds."""
    last = kernel.body.block.last_op
    assert last is not None
    stored = set(last.operands)
    return [op for op in operations_in(kernel) if op.result not in stored and not family_of(op.operator).is_move]
