"""SSA dominance: every use of a value stands where its definition has already happened.

xDSL's verifier checks types and structure but not this. Control flow is structured at all levels of Tessera (regions of
one block), so a value dominates a use exactly when it is defined earlier in the use's block or in a block that encloses
it: one walk in program order, with a scope per region, decides in time linear in operations and operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.traits import IsolatedFromAbove


@dataclass(frozen=True, slots=True)
class Violation:
    """An operation that breaks a rule of the IR, the rule in words, and the definition that it concerns, if any."""

    operation: Operation
    message: str
    definition: Operation | None = None


def find_dominance_violation(root: Operation) -> Violation | None:
    """The first use, in program order, that its definition does not dominate; None when all are sound."""
    return next(_walk_operation(root, set()), None)


def _walk_operation(op: Operation, visible: set[SSAValue]) -> Iterator[Violation]:
    for index, operand in enumerate(op.operands):
        if operand not in visible:
            definition = operand.op if isinstance(operand, OpResult) else None
            yield Violation(op, _explain(op, index, operand), definition)
    # An isolated region sees nothing of what is outside.
    scope = set() if op.has_trait(IsolatedFromAbove) else visible
    for region in op.regions:
        yield from _walk_region(op, region, scope)


def _walk_region(op: Operation, region: Region, visible: set[SSAValue]) -> Iterator[Violation]:
    if len(region.blocks) > 1:
        yield Violation(op, f"{op.name} has a region of {len(region.blocks)} blocks; control flow is structured here")
        return
    for block in region.blocks:
        defined: list[SSAValue] = list(block.args)
        visible.update(defined)
        for inner in block.ops:
            yield from _walk_operation(inner, visible)
            visible.update(inner.results)
            defined.extend(inner.results)
        visible.difference_update(defined)


def _explain(op: Operation, index: int, operand: SSAValue) -> str:
    use = f"{_value_name(operand)} is operand {index} of {op.name}"
    match operand:
        case OpResult():
            definition = f"{operand.op.name} defines it"
            reason = _relation(op, operand.op)
        case BlockArgument():
            owner = operand.block.parent_op()
            definition = f"it is argument {operand.index} of {'a detached block' if owner is None else owner.name}"
            reason = "whose region does not enclose the use"
        case _:
            return f"{use}, but nothing defines it"
    return f"{use}, but {definition} {reason}"


def _relation(op: Operation, definition: Operation) -> str:
    """Why `definition` does not reach `op`: later, itself, in a region that does not enclose it, or cut off."""
    if definition is op:
        return "itself: the operation uses its own result"
    if definition.is_ancestor(op):
        return "only when its own region, which holds the use, is done"
    home = definition.parent
    if home is None:
        return "outside of this module"
    enclosing = _ancestor_in(home, op)
    if enclosing is None:
        return "inside a region that does not enclose the use"
    return "later" if enclosing.is_before_in_block(definition) else "outside of an isolated region that holds the use"


def _ancestor_in(block: Block, op: Operation) -> Operation | None:
    current: Operation | None = op
    while current is not None and current.parent is not block:
        current = current.parent_op()
    return current


def _value_name(value: SSAValue) -> str:
    if value.name_hint is not None:
        return f"%{value.name_hint}"
    match value:
        case OpResult():
            return f"result {value.index} of {value.op.name}"
        case _:
            return "an unnamed value"
