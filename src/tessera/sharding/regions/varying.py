"""Which values of a region vary along which axes of the mesh, and where those that do not meet those that do.

Where an operator reads values of both sorts, a step `Vary` is put before those that are the same on all devices. It
moves nothing; its gradient is the sum over the devices, without which the gradient of what all devices share would be
that of one device's use alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tessera.lazy.layouts import MeshShape
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, constant_node, joined, leaf_node
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Structure
from tessera.ops.collective.records import ACROSS
from tessera.ops.collective.steps import GIVES_THE_SAME, TAKES_THE_SAME, AxisStep
from tessera.ops.record import OPERATORS

Axes: TypeAlias = frozenset[str]

NOWHERE: Final[Axes] = frozenset()


class OwnValue:
    """The owner of a leaf that stands for what a device has of an argument: along which axes of the mesh that differs
    from device to device. It has no memory.
    """

    __slots__ = ("mesh", "varies")

    _version: Final = -1

    def __init__(self, mesh: MeshShape, varies: Axes) -> None:
        self.mesh, self.varies = mesh, varies


def own_value(structure: Structure, mesh: MeshShape, varies: Iterable[str]) -> Leaf:
    """A leaf that stands for what a device has of an argument. It has no value; see `Placeholder`."""
    leaf = Placeholder(structure)
    leaf.owner = OwnValue(mesh, frozenset(varies))
    return leaf


class Varying(NamedTuple):
    """An expression of a region, and the axes along which it varies."""

    node: Any
    axes: Axes


def as_varying(nodes: Sequence[Node]) -> Sequence[Node]:
    """Expressions with a `Vary` wherever they need one; themselves where they are none of a region."""
    owner = next((leaf.owner for node in nodes for leaf in node.leaves if isinstance(leaf.owner, OwnValue)), None)
    return nodes if owner is None else [made.node for made in varying(nodes, owner.mesh)]


def varying(nodes: Sequence[Node], mesh: MeshShape) -> list[Varying]:
    """Expressions of one region over arguments of a mesh, each with a `Vary` wherever it needs one."""
    structure, leaves = joined(nodes)
    order = structure.post_order()
    found: list[Varying] = []
    for below, operands, leaf in order[:-1]:
        if leaf is not None:
            owner = leaves[leaf].owner
            found.append(Varying(leaf_node(leaves[leaf]), owner.varies if isinstance(owner, OwnValue) else NOWHERE))
        elif below.operator is None:
            found.append(Varying(constant_node(below), NOWHERE))
        else:
            found.append(_applied(below, [found[place] for place in operands], mesh))
    return [found[place] for place in order[-1].operands]


def _applied(structure: Structure, operands: Sequence[Varying], mesh: MeshShape) -> Varying:
    assert structure.operator is not None
    operator, step = OPERATORS[structure.operator.name], None
    if operator is ACROSS:
        step = structure.attributes[0]
    if step is not None:
        return _stepped(step, operands[0], mesh)
    axes = NOWHERE.union(*[operand.axes for operand in operands])
    nodes = [varied(operand, axes, mesh).node for operand in operands]
    return Varying(apply(operator, structure.attributes, nodes), axes)


def _stepped(step: AxisStep, operand: Varying, mesh: MeshShape) -> Varying:
    if step.kind == "Vary" and step.axis in operand.axes:
        return operand
    if step.kind not in TAKES_THE_SAME:
        operand = varied(operand, operand.axes | {step.axis}, mesh)
    assert step.kind not in TAKES_THE_SAME or step.axis not in operand.axes, (step, operand)
    axes = operand.axes - {step.axis} if step.kind in GIVES_THE_SAME else operand.axes | {step.axis}
    return Varying(apply(ACROSS, (step,), (operand.node,)), axes)


def varied(value: Varying, axes: Iterable[str], mesh: MeshShape) -> Varying:
    """The value as one that varies along these axes too. Numbers go with everything as they are."""
    wanted = value.axes.union(axes)
    node = value.node
    if node.structure.kind not in ("constant", "scalar"):
        for axis, size in mesh.axes:
            if axis in wanted and axis not in value.axes:
                node = apply(ACROSS, (AxisStep("Vary", axis, size),), (node,))
    return Varying(node, wanted)
