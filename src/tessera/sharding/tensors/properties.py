"""What a tensor on a mesh tells: its mesh, its layout, its shards, and its text."""

from __future__ import annotations

from typing import Any

from tessera.errors import MeshError
from tessera.lazy.devices import mesh_device
from tessera.lazy.layouts import Coordinates, Layout
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node
from tessera.lazy.promise import settle
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.printing import expression
from tessera.lazy.structures.structure import Structure
from tessera.ops.collective.records import CONSTRAIN
from tessera.sharding.execution import ShardedPlan
from tessera.sharding.partitioning.homes import homes_of
from tessera.sharding.partitioning.partition import partition
from tessera.sharding.partitioning.program import LocalProgram
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.parts import part_of
from tessera.sharding.tensors.shards import shards_of
from tessera.sharding.tensors.specs import ShardSpec, layout_on, shard_summary


def mesh_of(node: Node) -> Mesh:
    """The mesh that a tensor lies on. Raises MeshError (E_MESH) for one that lies on none."""
    meshes = list(dict.fromkeys([shards_of(leaf).mesh for leaf in node.leaves if leaf.structure.layout is not None]))
    if meshes and (len(meshes) > 1 or mesh_device(meshes[0].grid) != node.structure.device):
        return _mesh_of_part(node)
    if meshes:
        return meshes[0]
    raise MeshError(
        f"a tensor of shape {node.structure.shape} that lies on no mesh",
        hints=["dist.distribute(tensor, layout, mesh) puts it on one"],
    )


def _mesh_of_part(node: Node) -> Mesh:
    """The mesh of a tensor that was made by functions pinned to parts of a mesh, or by one of them."""
    structure, leaves = node.state
    order = structure.post_order()
    homes = homes_of(order)
    whole = next(
        shards_of(leaves[occurrence.leaf]).mesh
        for occurrence, home in zip(order, homes, strict=True)
        if home == () and occurrence.leaf is not None and occurrence.structure.layout is not None
    )
    return part_of(whole, homes[-1] or ())


def program_of(structure: Structure) -> LocalProgram:
    """The local program of an expression over tensors of a mesh."""
    return structure.plan.program if isinstance(structure.plan, ShardedPlan) else partition(structure)


def layout_of(node: Node) -> Layout:
    """How a tensor lies, or will lie once it is computed. Communicates nothing."""
    mesh_of(node)
    structure = node.structure
    if structure.layout is not None:
        return structure.layout
    program = program_of(structure)
    return program.values[program.roots[0]].layout


def resharded(node: Node, wanted: ShardSpec | Layout | None) -> Any:
    """The tensor in another layout; None has every device hold all of it."""
    mesh = mesh_of(node)
    return apply(CONSTRAIN, (layout_on(mesh, wanted, len(node.structure.shape)),), (node,))


def local_shard(leaf: Leaf, coordinates: Coordinates | None) -> Leaf:
    """The shard of this process, or that of the place at some coordinates. Raises MeshError (E_MESH) for a place whose
    shard is not here, and without coordinates where several are.
    """
    settle([leaf])
    owner = shards_of(leaf)
    shards = owner.leaves()
    if coordinates is not None:
        grid = owner.mesh.grid
        if any(not 0 <= coordinates.get(axis, -1) < size for axis, size in grid.axes):
            raise MeshError(f"no place of the mesh at {dict(coordinates)}: it has {grid}")
        place = grid.place(coordinates)
        if place not in shards:
            raise MeshError(f"the shard at {dict(coordinates)} is that of another rank")
        return shards[place]
    if len(shards) > 1:
        raise MeshError(
            f"this process holds the shards of {len(shards)} places",
            hints=['x.local({"dp": 0, "tp": 1}) is one of them'],
        )
    return next(iter(shards.values()))


def described(node: Node) -> str:
    """The text of a sharded tensor, without its values."""
    structure = node.structure
    head = f"Tensor({list(structure.shape)}, {structure.dtype}, {structure.device}"
    if structure.layout is None:
        return f"{head}, pending: {expression(structure)})"
    return (
        f'{head}, "{structure.layout}": {shard_summary(structure.shape, structure.dtype.itemsize, structure.layout)})'
    )
