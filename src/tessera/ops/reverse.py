"""Reverse mode: cotangents of leaves by the gradient rules of operators, expression to expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, constant_node, joined, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Occurrence, Shape, contiguous_strides
from tessera.ops.algebra import filled
from tessera.ops.record import OPERATORS


def by_leaves(outputs: Sequence[Node], seeds: Sequence[Node]) -> dict[Leaf, Any]:
    """Cotangents of all leaves that some outputs depend on, for a cotangent of each output."""
    structure, leaves = outputs[0].state if len(outputs) == 1 else joined(outputs)
    order = structure.post_order()
    roots = order[-1].operands if structure.kind == "tuple" else (len(order) - 1,)
    nodes = nodes_of(order[:-1] if structure.kind == "tuple" else order, leaves)
    cotangents: list[Any] = [None] * len(order)
    for root, seed in zip(roots, seeds, strict=True):
        present = cotangents[root]
        cotangents[root] = seed if present is None else present + seed
    for index in range(len(nodes) - 1, -1, -1):
        arriving, (below, operands, _) = cotangents[index], order[index]
        if arriving is None or below.operator is None:
            continue
        inputs = tuple(nodes[operand] for operand in operands)
        rule = OPERATORS[below.operator.name].gradient
        for operand, part in zip(operands, rule(arriving, inputs, nodes[index], **below.named_attributes), strict=True):
            if order[operand].structure.kind == "constant":  # one for all that name it, also on several parts of a mesh
                continue
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


def adjoint(function: Callable[[Any], Any], shape: Shape, g: Any) -> Any:
    """The transpose of a linear function of a tensor of `shape`, applied to g, in whose dtype all is computed."""
    operand = leaf_node(Placeholder(interning.buffer(shape, contiguous_strides(shape), g.dtype)))
    (leaf,) = operand.leaves
    found = by_leaves([function(operand)], [g]).get(leaf)
    return filled(0, operand) if found is None else found


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
