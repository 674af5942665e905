"""Applying operators to nodes: one dictionary look-up for an expression that is known. The hot path of making
expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.lazy import node as nodes
from tessera.lazy.evaluation import evaluate
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node, State, merge
from tessera.lazy.structures import interning
from tessera.lazy.structures.interning import PendingLimitReached
from tessera.lazy.structures.structure import Attributes, OperatorRecord, Position, Structure


def unary(operator: OperatorRecord, attributes: Attributes, operand: Node) -> Any:
    """The node of an operator of one operand."""
    below, leaves = operand.state
    structure = interning.table.get((operator, attributes, below))
    if structure is None:
        return apply(operator, attributes, (operand,))
    return nodes.make((structure, leaves))


def binary(operator: OperatorRecord, attributes: Attributes, first: Node, second: Node) -> Any:
    """The node of an operator of two operands."""
    below, leaves = first.state
    below_second, leaves_second = second.state
    if leaves is leaves_second:
        position: Position = 0
    elif len(leaves_second) == 1 and len(leaves) == 1:
        # Two operands of one leaf each: the commonest case, without a call.
        if leaves[0] is leaves_second[0]:
            position = 0
        else:
            position = 1
            leaves = leaves + leaves_second
    else:
        leaves, position = merge(leaves, leaves_second)
    structure = interning.table.get((operator, attributes, below, below_second, position))
    if structure is None:
        return apply(operator, attributes, (first, second))
    return nodes.make((structure, leaves))


def apply(operator: OperatorRecord, attributes: Attributes, operands: Sequence[Node]) -> Any:
    """The node of an operator over any number of operands. Raises what the operator's shape rule raises.

    Operands are evaluated first where more than `PENDING_LIMIT` operators would be pending otherwise.
    """
    try:
        return nodes.make(_applied(operator, attributes, operands))
    except PendingLimitReached:
        # Literals are shared between expressions, and stay what they are.
        evaluate([operand for operand in operands if operand.state[0].kind == "node"])
        return nodes.make(_applied(operator, attributes, operands))


def _applied(operator: OperatorRecord, attributes: Attributes, operands: Sequence[Node]) -> State:
    below: list[Structure] = []
    positions: list[Position] = []
    leaves: tuple[Leaf, ...] = ()
    for operand in operands:
        structure, own = operand.state
        leaves, position = merge(leaves, own)
        below.append(structure)
        positions.append(position)
    return interning.intern(operator, attributes, tuple(below), tuple(positions)), leaves
