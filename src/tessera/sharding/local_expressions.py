"""The expressions of one device: what a step of a local program computes of the values that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tessera.dtypes import DType
from tessera.lazy.devices import CPU
from tessera.lazy.layouts import Coordinates, Shape
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, constant_node, joined, leaf_node
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Structure
from tessera.ops.algebra import filled, literal
from tessera.ops.layout import views
from tessera.sharding.partitioning.program import (
    Chunk,
    Compute,
    FromParts,
    Joined,
    Literal,
    LocalProgram,
    Regard,
    ShardMove,
    coordinates_at,
)
from tessera.sharding.partitioning.redistribution import MeshStep
from tessera.sharding.partitioning.rules import with_result
from tessera.sharding.partitioning.schedule import Evaluate


class Together(NamedTuple):
    """Values that one plan computes: its structure, the values that are its leaves, and those that it makes."""

    structure: Structure
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class StepExpressions(NamedTuple):
    """What a step computes on one device: `plans`, and values that are others as they lie."""

    plans: tuple[Together, ...]
    same: tuple[tuple[int, int], ...]


def step_expressions(
    program: LocalProgram, step: Evaluate, at: Coordinates, used: Mapping[int, Structure]
) -> StepExpressions:
    """The expressions of a step on the device at some coordinates, over what is there."""
    given = {number: Placeholder(structure) for number, structure in used.items()}
    nodes = {number: leaf_node(leaf) for number, leaf in given.items()}
    numbers: dict[Leaf, int] = {leaf: number for number, leaf in given.items()}
    for number in step.members:
        own = coordinates_at(program.values[number].home, at)
        if own is not None:
            nodes[number] = _node(program, number, nodes, own)
    same, pending = [], []
    for number in step.wanted:
        if number in nodes:
            node = nodes[number]
            if node.is_pending:
                pending.append((number, Node(node.state)))
            else:
                same.append((number, numbers[node.leaves[0]]))
    return StepExpressions(tuple(_together(pending, numbers)), tuple(same))


def _together(pending: Sequence[tuple[int, Node]], numbers: Mapping[Leaf, int]) -> Iterable[Together]:
    """A plan for each device of the memory that values lie in."""
    groups: dict[str, list[tuple[int, Node]]] = {}
    for number, node in pending:
        groups.setdefault(node.structure.device or CPU, []).append((number, node))
    for group in groups.values():
        nodes = [node for _, node in group]
        structure, leaves = nodes[0].state if len(nodes) == 1 else joined(nodes)
        yield Together(structure, tuple([numbers[leaf] for leaf in leaves]), tuple([number for number, _ in group]))


def _node(program: LocalProgram, number: int, nodes: Mapping[int, Node], at: Coordinates) -> Any:
    """The expression of one value on the device at some coordinates of its home."""
    instruction, value = program.instructions[number], program.values[number]
    match instruction:
        case Literal(structure):
            return constant_node(structure)
        case Compute(operator, attributes, operands):
            shape = value.layout.local_shape(value.shape, at)
            local = with_result(operator, attributes, value.shape, shape)
            made = apply(operator, local, [nodes[each] for each in operands])
            assert made.structure.shape == shape, (instruction, made, shape)
            return made
        case Regard(operand):
            return _shaped(nodes[operand], value.layout.local_shape(value.shape, at))
        case Chunk(operand):
            return _piece(nodes[operand], instruction)
        case Joined(operands):
            return _joined([nodes[each] for each in operands], instruction)
        case ShardMove(step, operand):
            return _kept(nodes[operand], step, value.shape, at)
        case FromParts(operands, parts):
            shape = value.layout.local_shape(value.shape, at)
            own = [n for n, part in zip(operands, parts, strict=True) if part.coordinates(at) is not None]
            return _shaped(nodes[own[0]], shape) if own else _zeros(shape, value.dtype)
    raise AssertionError(f"{instruction} is there before anything is computed")


def _kept(node: Node, step: MeshStep, shape: Shape, coordinates: Coordinates) -> Any:
    """The part of what a device holds that the layout after a cut leaves it; all or zeros where one device keeps it."""
    if step.kind == "Keep":
        return node if coordinates[step.axis] == step.by else filled(0, node)
    before = step.source.region(shape, coordinates)
    after = step.target.region(shape, coordinates)
    starts = [first - start for (start, _), (first, _) in zip(before, after, strict=True)]
    ends = [end - start for (start, _), (_, end) in zip(before, after, strict=True)]
    return views.indexed(node, tuple(slice(*pair) for pair in zip(starts, ends, strict=True)))


def _shaped(node: Node, shape: Shape) -> Any:
    return node if node.structure.shape == shape else views.reshape(node, shape)


def _zeros(shape: Shape, dtype: DType) -> Any:
    return views.broadcast_to(literal(0, dtype), shape)


def _piece(node: Node, piece: Chunk) -> Any:
    length = node.structure.shape[piece.dim] // piece.count
    return views.part(node, piece.dim, piece.index * length, length)


def _joined(nodes: Sequence[Node], joined: Joined) -> Any:
    dim, blocks = joined.dim, joined.blocks
    if blocks == 1:
        return views.concat(nodes, dim)
    shape = nodes[0].structure.shape
    length = shape[dim] // blocks
    apart = [views.reshape(node, (*shape[:dim], blocks, length, *shape[dim + 1 :])) for node in nodes]
    whole = (*shape[:dim], shape[dim] * len(nodes), *shape[dim + 1 :])
    return views.reshape(views.concat(apart, dim + 1), whole)
