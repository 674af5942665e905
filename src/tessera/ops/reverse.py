"""Reverse mode: cotangents of leaves by the gradient rules of operators, expression to expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.lazy.building import apply
from tessera.lazy.leaf import Leaf
from tessera.lazy.node import Node, constant_node, leaf_node
from tessera.lazy.structure import Occurrence
from tessera.ops.record import OPERATORS


def pulled_back(output: Node, cotangent: Node) -> dict[Leaf, Any]:
    """Cotangents of all leaves that an output depends on, for one of the output."""
    structure, leaves = output.state
    order = structure.post_order()
    nodes = nodes_of(order, leaves)
    cotangents: list[Any] = [None] * len(order)
    cotangents[-1] = cotangent
    for index in range(len(order) - 1, -1, -1):
        arriving, (below, operands, _) = cotangents[index], order[index]
        if arriving is None or below.operator is None:
            continue
        inputs = tuple(nodes[operand] for operand in operands)
        rule = OPERATORS[below.operator.name].gradient
        for operand, part in zip(operands, rule(arriving, inputs, nodes[index], **below.named_attributes), strict=True):
            if part is not None and nodes[operand].dtype.kind in ("float", "complex"):
                present = cotangents[operand]
                cotangents[operand] = part if present is None else present + part
    by_leaf: dict[Leaf, Any] = {}
    for occurrence, part in zip(order, cotangents, strict=True):
        if occurrence.leaf is not None and part is not None:
            # A leaf may have several places: its own, and those that an inner gradient watched it in.
            leaf = leaves[occurrence.leaf]
            by_leaf[leaf] = by_leaf[leaf] + part if leaf in by_leaf else part
    return by_leaf


def nodes_of(order: Sequence[Occurrence], leaves: Sequence[Leaf]) -> list[Any]:
    """The node of each occurrence; those of an expression share its structures."""
    nodes: list[Any] = []
    for structure, operands, leaf in order:
        if leaf is not None:
            nodes.append(leaf_node(leaves[leaf]))
        elif structure.operator is None:
            nodes.append(constant_node(structure))
        else:
            operator = OPERATORS[structure.operator.name]
            nodes.append(apply(operator, structure.attributes, [nodes[operand] for operand in operands]))
    return nodes
