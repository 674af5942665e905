"""Running local programs: for each shard that this process holds, the kernels between two exchanges as one evaluation.

A program is cut into levels: what depends on no exchange, what depends on one, and so on. All of a level that is still
needed is evaluated together, then its exchanges run, in the order of the program, which is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tessera.errors import MeshError
from tessera.lazy import interning
from tessera.lazy.building import apply
from tessera.lazy.devices import is_mesh
from tessera.lazy.evaluation import check_versions, evaluate
from tessera.lazy.export import to_torch
from tessera.lazy.layouts import Coordinates, Shape
from tessera.lazy.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, constant_node, leaf_node
from tessera.lazy.promise import ordered
from tessera.lazy.sources import from_torch
from tessera.lazy.structure import Structure
from tessera.ops.algebra import filled
from tessera.ops.layout import views
from tessera.sharding import communication
from tessera.sharding.groups import moved
from tessera.sharding.levels import levels_of
from tessera.sharding.mesh import Mesh
from tessera.sharding.order import collective_order
from tessera.sharding.partition import partition
from tessera.sharding.program import Compute, Literal, Read, Regard, ShardMove
from tessera.sharding.redistribution import MeshStep
from tessera.sharding.rules import result_attributes
from tessera.sharding.shards import Shards, shards_of

Slots: TypeAlias = dict[int, Leaf]
"""By number, the values that are there on a device."""

Output: TypeAlias = tuple[int, Structure, tuple[int, ...]]
"""A value, its expression, and the values that are its leaves."""


class ShardedPlan:
    """What evaluates a structure over tensors of one mesh; the plan of that structure."""

    threads = None

    def __init__(self, structure: Structure) -> None:
        self.program = partition(structure)
        self._levels = levels_of(self.program)
        self._outputs: dict[tuple[int, int, tuple[Structure, ...]], list[Output]] = {}

    def run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """Evaluates over `leaves`, and gives a leaf per root.

        Raises AbstractMeshError (E_MESH_ABSTRACT) on a mesh without ranks, MeshError (E_MESH) for tensors of two.
        """
        communication.check(self.program)
        collective_order.wait()
        return self._run(leaves)

    def _run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        mesh = _mesh_of(leaves)
        slots: dict[int, Slots] = {place: {} for place in mesh.places}
        for number, instruction in enumerate(self.program.instructions):
            if isinstance(instruction, Read):
                self._read(number, leaves[instruction.leaf], slots)
        for level in range(len(self._levels)):
            self._compute(level, mesh, slots)
            self._exchange(level, mesh, slots)
        return tuple(self._result(root, mesh, slots) for root in self.program.roots)

    def reserve(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """Leaves whose shards are on their way. Raises as `run` does."""
        communication.check(self.program)
        mesh = _mesh_of(leaves)
        mesh.places  # noqa: B018 - raises where nobody computes
        return tuple(
            Shards(mesh, value.shape, value.dtype, value.layout, None).leaf()
            for value in (self.program.values[root] for root in self.program.roots)
        )

    def fill(self, leaves: tuple[Leaf, ...], targets: tuple[Leaf, ...]) -> None:
        """Computes what `reserve` gave, where everything comes after what it has to come after."""
        with ordered():
            results = self._run(leaves)
        for target, result in zip(targets, results, strict=True):
            shards_of(target).fill(shards_of(result).leaves())

    def run_into(self, leaves: tuple[Leaf, ...], targets: tuple[Leaf, ...]) -> bool:
        """False: shards are brought together for memory of a single device, and then copied."""
        return False

    # -- steps ----------------------------------------------------------------------------------------------------

    def _read(self, number: int, leaf: Leaf, slots: dict[int, Slots]) -> None:
        shards = shards_of(leaf).leaves() if leaf.structure.layout is not None else None
        own = _on_each_device(leaf)
        for place, held in slots.items():
            held[number] = own if shards is None else shards[place]

    def _compute(self, level: int, mesh: Mesh, slots: dict[int, Slots]) -> None:
        used, wanted = self._levels[level].used, self._levels[level].wanted
        if not wanted:
            return
        for place, held in slots.items():
            key = (level, place, tuple([held[number].structure for number in used]))
            outputs = self._outputs.get(key)
            if outputs is None:
                outputs = self._outputs[key] = self._built(level, place, held)
            nodes = [Node((structure, tuple([held[each] for each in own]))) for _, structure, own in outputs]
            check_versions([held[number] for number in used])
            evaluate(nodes)
            for (number, _, _), node in zip(outputs, nodes, strict=True):
                held[number] = node.leaves[0]

    def _built(self, level: int, place: int, held: Slots) -> list[Output]:
        """The expressions of a level on one device, over what is there."""
        program, coordinates = self.program, self.program.mesh.coordinates(place)
        # New leaves, since two values may be one leaf.
        given = {number: Placeholder(held[number].structure) for number in self._levels[level].used}
        nodes = {number: leaf_node(leaf) for number, leaf in given.items()}
        numbers = {leaf: number for number, leaf in given.items()}
        for number in self._levels[level].members:
            instruction, value = program.instructions[number], program.values[number]
            if isinstance(instruction, Literal):
                nodes[number] = constant_node(instruction.structure)
            elif isinstance(instruction, Compute):
                operands = [nodes[each] for each in instruction.operands]
                shape = value.layout.local_shape(value.shape, coordinates)
                nodes[number] = apply(instruction.operator, _local(instruction, shape), operands)
                assert nodes[number].structure.shape == shape, (instruction, nodes[number], shape)
            elif isinstance(instruction, Regard):
                nodes[number] = nodes[instruction.operand]
            elif isinstance(instruction, ShardMove):
                nodes[number] = _kept(nodes[instruction.operand], instruction.step, value.shape, coordinates)
        return [
            (number, nodes[number].state[0], tuple([numbers[leaf] for leaf in nodes[number].state[1]]))
            for number in self._levels[level].wanted
        ]

    def _exchange(self, level: int, mesh: Mesh, slots: dict[int, Slots]) -> None:
        for number in self._levels[level].exchanges:
            instruction = self.program.instructions[number]
            assert isinstance(instruction, ShardMove)
            parts = {place: to_torch(held[instruction.operand]).contiguous() for place, held in slots.items()}
            for place, tensor in moved(mesh, instruction.step, self.program.values[number].shape, parts).items():
                slots[place][number] = from_torch(tensor)

    def _result(self, root: int, mesh: Mesh, slots: dict[int, Slots]) -> Leaf:
        value = self.program.values[root]
        held = {place: own[root] for place, own in slots.items()}
        return Shards(mesh, value.shape, value.dtype, value.layout, held).leaf()


def _mesh_of(leaves: Sequence[Leaf]) -> Mesh:
    """The mesh that all sharded leaves lie on."""
    found = list(dict.fromkeys([shards_of(leaf).mesh for leaf in leaves if leaf.structure.layout is not None]))
    if len(found) > 1:
        raise MeshError(f"operands on several meshes: {' and '.join(map(repr, found))}")
    return found[0]


def _on_each_device(leaf: Leaf) -> Leaf:
    """A number, or a table that a gradient's rule made for all devices alike, as each device has it."""
    if not is_mesh(leaf.structure.device):
        return leaf
    return Leaf(interning.buffer(leaf.shape, leaf.strides, leaf.dtype), leaf.address, leaf.owner, leaf.version)


def _local(instruction: Compute, shape: Shape) -> tuple[Any, ...]:
    """The attributes of an operator on a shard: those that repeat the result's shape have that of its shard."""
    operator, attributes = instruction.operator, instruction.attributes
    repeated = result_attributes(operator)
    if not repeated or (operator.known_anchor is None and operator.anchor_rule is None):
        return attributes  # what no map describes is computed whole
    named = zip(operator.attribute_names, attributes, strict=True)
    return tuple([shape if name in repeated else value for name, value in named])


def _kept(node: Node, step: MeshStep, shape: Shape, coordinates: Coordinates) -> Any:
    """The part of what a device holds that the layout after a cut leaves it; all or zeros where one device keeps it."""
    if step.kind == "Keep":
        return node if coordinates[step.axis] == step.by else filled(0, node)
    before = step.source.region(shape, coordinates)
    after = step.target.region(shape, coordinates)
    starts = [first - start for (start, _), (first, _) in zip(before, after, strict=True)]
    ends = [end - start for (start, _), (_, end) in zip(before, after, strict=True)]
    return views.indexed(node, tuple(slice(*pair) for pair in zip(starts, ends, strict=True)))
