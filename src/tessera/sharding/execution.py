"""Running local programs: for each shard that this process holds, the kernels between two exchanges as one evaluation.

What lies between two exchanges is evaluated together; `schedule.py` says where exchanges begin and where they are
waited for, the same on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tessera.dtypes import DType
from tessera.errors import MeshError
from tessera.lazy.devices import is_mesh
from tessera.lazy.evaluation import check_versions, evaluate
from tessera.lazy.layouts import Coordinates, Shape
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node, constant_node, leaf_node
from tessera.lazy.promise import ordered
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Structure
from tessera.ops.algebra import filled, literal
from tessera.ops.layout import views
from tessera.sharding.chunk_choice import ChunkTrials, modelled
from tessera.sharding.exchange import communication
from tessera.sharding.exchange.groups import Waiting, begun, begun_together, unpacked
from tessera.sharding.exchange.order import collective_order
from tessera.sharding.partitioning.chunking import chunked
from tessera.sharding.partitioning.partition import partition
from tessera.sharding.partitioning.program import (
    Chunk,
    Compute,
    FromParts,
    Home,
    Joined,
    Literal,
    LocalProgram,
    Read,
    Regard,
    ShardMove,
    coordinates_at,
)
from tessera.sharding.partitioning.redistribution import MeshStep
from tessera.sharding.partitioning.rules import with_result
from tessera.sharding.partitioning.schedule import Evaluate, OverlapLimits, Start, schedule_of
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.parts import HeldPlaces, held_places, part_of
from tessera.sharding.tensors.shards import Shards, shards_of

Slots: TypeAlias = dict[int, Leaf]
"""By number, the values that are there on a device."""

Output: TypeAlias = tuple[int, Structure, tuple[int, ...]]
"""A value, its expression, and the values that are its leaves."""


class ShardedPlan:
    """What evaluates a structure over tensors of one mesh; the plan of that structure."""

    threads = None

    def __init__(self, structure: Structure) -> None:
        self.program = program = partition(structure)
        instructions = zip(program.instructions, program.values, strict=True)
        self._reads = [(each.leaf, value.home) for each, value in instructions if isinstance(each, Read)]
        self.topology: str | None = None
        """That of the mesh on which it ran last."""
        self._runs: dict[tuple[OverlapLimits, int], _Run] = {}
        self._modelled: dict[tuple[OverlapLimits, str | None], int] = {}
        self._trials: dict[OverlapLimits, ChunkTrials] = {}

    def run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """Evaluates over `leaves`, and gives a leaf per root.

        Raises AbstractMeshError (E_MESH_ABSTRACT) on a mesh without ranks, MeshError (E_MESH) for tensors of two.
        """
        communication.check(self.program)
        collective_order.wait()
        return self._run(leaves)

    def _run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        limits = communication.current().limits
        mesh = _mesh_of(self._reads, leaves)
        self.topology = mesh.topology
        if isinstance(limits.chunk, int):
            return self._with(limits, limits.chunk, mesh, leaves)
        if limits.chunk == "auto":
            key = limits, mesh.topology
            if key not in self._modelled:
                self._modelled[key] = modelled(self.program, limits, mesh.topology)
            return self._with(limits, self._modelled[key], mesh, leaves)
        trials = self._trials.setdefault(limits, ChunkTrials(self.program))
        begun = time.perf_counter()
        results = self._with(limits, trials.choice, mesh, leaves)
        if not trials.is_settled:
            trials.add(time.perf_counter() - begun, mesh)
        return results

    def _with(self, limits: OverlapLimits, chunk: int, mesh: Mesh, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        run = self._runs.get((limits, chunk))
        if run is None:
            run = self._runs[limits, chunk] = _Run(chunked(self.program, chunk), limits)
        return run(mesh, leaves)

    def reserve(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """Leaves whose shards are on their way. Raises as `run` does."""
        communication.check(self.program)
        mesh = _mesh_of(self._reads, leaves)
        mesh.places  # noqa: B018 - raises where nobody computes
        return tuple(
            Shards(part_of(mesh, value.home), value.shape, value.dtype, value.layout, None).leaf()
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


class _Run:
    """A program in the order of a schedule."""

    def __init__(self, program: LocalProgram, limits: OverlapLimits) -> None:
        self.program = program
        self.schedule = schedule_of(program, limits)
        self._outputs: dict[tuple[int, int, tuple[Structure, ...]], list[Output]] = {}
        self._homes = list(dict.fromkeys(value.home for value in program.values))
        self._is_whole = len(self._homes) == 1
        """Whether all lies on the whole mesh, and no device skips anything."""
        self._reads = [(n, each.leaf) for n, each in enumerate(program.instructions) if isinstance(each, Read)]

    def __call__(self, mesh: Mesh, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        held = held_places(mesh, self._homes)
        slots: dict[int, Slots] = {place: {} for place in mesh.places}
        for number, leaf in self._reads:
            self._read(number, leaves[leaf], held, slots)
        under_way: dict[tuple[int, ...], Waiting] = {}
        for index, step in enumerate(self.schedule):
            if isinstance(step, Evaluate):
                self._compute(index, step, slots)
                continue
            own = held[self.program.values[step.bucket[0]].home]
            if not own.own:
                continue  # devices of another part of the mesh exchange
            if isinstance(step, Start):
                under_way[step.bucket] = self._start(step.bucket, own, slots)
            else:
                self._wait(step.bucket, under_way.pop(step.bucket), own, slots)
        return tuple(self._result(root, held, slots) for root in self.program.roots)

    # -- steps ----------------------------------------------------------------------------------------------------

    def _read(self, number: int, leaf: Leaf, held: Mapping[Home, HeldPlaces], slots: dict[int, Slots]) -> None:
        home = held[self.program.values[number].home]
        if not home.own:
            return
        shards = shards_of(leaf).leaves() if leaf.structure.layout is not None else None
        own = _on_each_device(leaf)
        for place, there in home.own.items():
            slots[place][number] = own if shards is None else shards[there]

    def _compute(self, index: int, step: Evaluate, slots: dict[int, Slots]) -> None:
        for place, held in slots.items():
            used = step.used if self._is_whole else [number for number in step.used if number in held]
            key = (index, place, tuple([held[number].structure for number in used]))
            outputs = self._outputs.get(key)
            if outputs is None:
                outputs = self._outputs[key] = self._built(step, place, held)
            if not outputs:
                continue
            nodes = [Node((structure, tuple([held[each] for each in own]))) for _, structure, own in outputs]
            check_versions([held[number] for number in used])
            evaluate(nodes)
            for (number, _, _), node in zip(outputs, nodes, strict=True):
                held[number] = node.leaves[0]

    def _built(self, step: Evaluate, place: int, held: Slots) -> list[Output]:
        """The expressions of a step on one device, over what is there."""
        program, at = self.program, self.program.mesh.coordinates(place)
        # New leaves, since two values may be one leaf.
        given = {number: Placeholder(held[number].structure) for number in step.used if number in held}
        nodes = {number: leaf_node(leaf) for number, leaf in given.items()}
        numbers = {leaf: number for number, leaf in given.items()}
        for number in step.members:
            own = coordinates_at(program.values[number].home, at)
            if own is not None:
                nodes[number] = self._node(number, nodes, own)
        return [
            (number, nodes[number].state[0], tuple([numbers[leaf] for leaf in nodes[number].state[1]]))
            for number in step.wanted
            if number in nodes
        ]

    def _node(self, number: int, nodes: Mapping[int, Node], at: Coordinates) -> Any:
        """The expression of one value on the device at some coordinates of its home."""
        instruction, value = self.program.instructions[number], self.program.values[number]
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

    def _start(self, bucket: tuple[int, ...], home: HeldPlaces, slots: dict[int, Slots]) -> Waiting:
        moves, shapes = self._moves(bucket)
        parts = [
            {there: to_torch(slots[place][move.operand]).contiguous() for place, there in home.own.items()}
            for move in moves
        ]
        if len(bucket) == 1:
            return begun(home.mesh, moves[0].step, shapes[0], parts[0])
        return begun_together(home.mesh, [move.step for move in moves], shapes, parts)

    def _wait(self, bucket: tuple[int, ...], waiting: Waiting, home: HeldPlaces, slots: dict[int, Slots]) -> None:
        made = waiting()
        moves, shapes = self._moves(bucket)
        results = [made] if len(bucket) == 1 else unpacked(home.mesh, [move.step for move in moves], shapes, made)
        for number, result in zip(bucket, results, strict=True):
            for place, tensor in home.outwards(result).items():
                slots[place][number] = from_torch(tensor)

    def _moves(self, bucket: tuple[int, ...]) -> tuple[list[ShardMove], list[Shape]]:
        instructions = [self.program.instructions[number] for number in bucket]
        moves = [each for each in instructions if isinstance(each, ShardMove)]
        return moves, [self.program.values[number].shape for number in bucket]

    def _result(self, root: int, held: Mapping[Home, HeldPlaces], slots: dict[int, Slots]) -> Leaf:
        value = self.program.values[root]
        home = held[value.home]
        made = home.inwards({place: slots[place][root] for place in home.own})
        return Shards(home.mesh, value.shape, value.dtype, value.layout, made).leaf()


def _mesh_of(reads: Sequence[tuple[int, Home]], leaves: Sequence[Leaf]) -> Mesh:
    """The whole mesh of a program that reads leaves by number, each at a home. Raises MeshError (E_MESH) where one lies
    on another mesh, or on another part.
    """
    lies = {(shards_of(leaves[leaf]).mesh, home): None for leaf, home in reads if leaves[leaf].structure.layout}
    found = [mesh for mesh, home in lies if not home]
    if len(found) > 1:
        raise MeshError(f"operands on several meshes: {' and '.join(map(repr, found))}")
    if len(lies) > 1:
        for mesh, home in lies:
            wanted = part_of(found[0], home)
            if mesh != wanted:
                raise MeshError(f"a tensor on ranks {list(mesh.devices)}, which ranks {list(wanted.devices)} read")
    return found[0]


def _on_each_device(leaf: Leaf) -> Leaf:
    """A number, or a table that a gradient's rule made for all devices alike, as each device has it."""
    if not is_mesh(leaf.structure.device):
        return leaf
    return Leaf(interning.buffer(leaf.shape, leaf.strides, leaf.dtype), leaf.address, leaf.owner, leaf.version)


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
