"""Plans of structures over tensors of a mesh: local programs, cut into pieces and scheduled as the context says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

from tessera.errors import MeshError
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.promise import ordered
from tessera.lazy.structures.structure import Structure
from tessera.sharding.bound_program import BoundProgram
from tessera.sharding.chunk_choice import ChunkTrials, modelled
from tessera.sharding.exchange import communication
from tessera.sharding.exchange.order import collective_order
from tessera.sharding.partitioning.chunking import chunked
from tessera.sharding.partitioning.partition import partition
from tessera.sharding.partitioning.program import Home, Read
from tessera.sharding.partitioning.schedule import OverlapLimits, told
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.parts import part_of
from tessera.sharding.tensors.shards import Shards, shards_of

Late: TypeAlias = tuple[tuple[int, int], ...]
"""Positions of leaves that may be waited for when they are first read, each with the place in the order of waits."""


class ShardedPlan:
    """What evaluates a structure over tensors of one mesh; the plan of that structure."""

    threads = None

    def __init__(self, structure: Structure) -> None:
        self.program = program = partition(structure)
        instructions = zip(program.instructions, program.values, strict=True)
        self._reads = [(each.leaf, value.home) for each, value in instructions if isinstance(each, Read)]
        self.topology: str | None = None
        """That of the mesh on which it ran last."""
        self._bound: dict[tuple[OverlapLimits, int, Mesh, Late], BoundProgram] = {}
        self._last: BoundProgram | None = None
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
            for result in results:  # what is left for later is part of what is timed
                shards_of(result).leaves()
            trials.add(time.perf_counter() - begun, mesh)
        return results

    def _with(self, limits: OverlapLimits, chunk: int, mesh: Mesh, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        late = self._late(leaves) if mesh.has_messages and limits.overlap else ()
        key = limits, chunk, mesh, late
        bound = self._bound.get(key)
        if bound is None:
            # Of a job that there was before, nobody asks for programs any more.
            self._bound = {each: held for each, held in self._bound.items() if not each[2].is_replaced_by(mesh)}
            bound = self._bound[key] = BoundProgram(chunked(self.program, chunk), limits, mesh, dict(late))
        self._last = bound
        return bound(leaves)

    def _late(self, leaves: tuple[Leaf, ...]) -> Late:
        """By position the leaves that programs before may still wait for, in which order; the same on all ranks."""
        found: dict[int, tuple[int, int]] = {}
        for position, _ in self._reads:
            when = shards_of(leaves[position]).late if leaves[position].structure.layout is not None else None
            if when is not None:
                found[position] = when
        order = {when: number for number, when in enumerate(sorted(set(found.values())))}
        return tuple([(position, order[when]) for position, when in found.items()])

    def schedule(self) -> tuple[str, ...]:
        """The steps of what ran last, as text; none where nothing has run. Values are those of the program in as many
        pieces.
        """
        last = self._last
        return () if last is None else tuple(told(last.program, last.schedule))

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


def _mesh_of(reads: Sequence[tuple[int, Home]], leaves: Sequence[Leaf]) -> Mesh:
    """The whole mesh of a program that reads leaves by number, each at a home. Raises MeshError (E_MESH) where one lies
    on another mesh, or on another part.
    """
    first = next(shards_of(leaves[leaf]).mesh for leaf, _ in reads if leaves[leaf].structure.layout)
    if all(
        not leaves[leaf].structure.layout or (shards_of(leaves[leaf]).mesh is first and not home)
        for leaf, home in reads
    ):
        return first
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
