"""Sharded tensors out of a shape, of data, of shards, and of other tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from tessera.dtypes import DType, dtype_of
from tessera.errors import MeshError
from tessera.lazy.layouts import Layout, Shape
from tessera.lazy.leaves.constants import constant_leaf
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.sharding.tensors import values
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.shards import Shards, shards_of
from tessera.sharding.tensors.values import Init


def of_values(shape: Shape, dtype: DType, mesh: Mesh, layout: Layout, init: Init, seed: int) -> Leaf:
    """A leaf whose shards are made when they are first read: values by global place."""

    def made(place: int) -> torch.Tensor:
        region = layout.region(shape, mesh.grid.coordinates(place))
        return values.region_of(shape, region, dtype, init, seed)

    return Shards(mesh, shape, dtype, layout, made).leaf()


def zeros_like(leaf: Leaf) -> Leaf:
    """Zeros that lie as a sharded leaf does."""
    shards = shards_of(leaf)
    return of_values(leaf.shape, leaf.dtype, shards.mesh, shards.layout, "zeros", 0)


def constants(leaf: Leaf) -> Leaf:
    """A sharded leaf of the same shards as constants (`lazy/leaves/constants.py`), which are allocated now; the leaf as
    it is where this process holds none.
    """
    shards = shards_of(leaf)
    if shards.mesh.state == "abstract" or shards.mesh.is_elsewhere:
        return leaf
    held = {place: constant_leaf(each) for place, each in shards.leaves().items()}
    return Shards(shards.mesh, shards.shape, shards.dtype, shards.layout, held).leaf()


def of_whole(whole: torch.Tensor, dtype: DType, mesh: Mesh, layout: Layout) -> Leaf:
    """The leaf of a tensor that every process holds whole: each keeps copies of its shards alone, and one that the mesh
    has no device of keeps none.
    """
    shape, grid = tuple(whole.shape), mesh.grid
    if mesh.is_elsewhere:
        return of_values(shape, dtype, mesh, layout, "zeros", 0)
    held: dict[int, Leaf] = {}
    for place in mesh.places:
        region = layout.region(shape, grid.coordinates(place))
        part = whole[tuple(slice(*each) for each in region)]
        held[place] = from_torch(part.detach().clone(memory_format=torch.contiguous_format))
    return Shards(mesh, shape, dtype, layout, held).leaf()


def of_shards(
    given: torch.Tensor | Callable[[Mapping[str, int]], torch.Tensor], mesh: Mesh, layout_of: Callable[[int], Layout]
) -> Leaf:
    """The leaf of shards that exist; their memory is borrowed. `layout_of(rank)` is the layout of a tensor of so many
    dimensions. The global extents are the sums of those of shards.

    Raises MeshError (E_MESH) for a single tensor on an emulated mesh of several places, and for shards that are no
    parts of one tensor.
    """
    grid = mesh.grid
    if callable(given):
        parts = {place: torch.as_tensor(given(grid.coordinates(place))) for place in mesh.places}
    elif len(mesh.places) > 1:
        raise MeshError(
            f"one tensor for {len(mesh.places)} places of an emulated mesh", hints=["pass a function of coordinates"]
        )
    else:
        parts = {mesh.places[0]: given}
    first = next(iter(parts.values()))
    layout = layout_of(first.dim())
    shape = _global_shape(parts, mesh, layout)
    for place, part in parts.items():
        wanted = layout.local_shape(shape, grid.coordinates(place))
        if tuple(part.shape) != wanted or part.dtype != first.dtype:
            raise MeshError(
                f"the shard at {grid.coordinates(place)} is {tuple(part.shape)} {part.dtype}; of a tensor of {shape} "
                f'as "{layout}" it is {wanted} {first.dtype}',
                hints=["parts are of ceil(n / devices), the last ones short or empty"],
            )
    held = {place: from_torch(part) for place, part in parts.items()}
    return Shards(mesh, shape, dtype_of(first.dtype), layout, held).leaf()


def _global_shape(parts: Mapping[int, torch.Tensor], mesh: Mesh, layout: Layout) -> Shape:
    """The extents of the tensor that shards are parts of: the sums over the places that split each dimension."""
    place, part = next(iter(parts.items()))
    shape = []
    for dimension, axes in enumerate(layout.dims):
        if not axes:
            shape.append(int(part.shape[dimension]))
            continue
        extents = _along(parts, mesh, axes, place, dimension)
        shape.append(sum(extents))
    return tuple(shape)


def _along(parts: Mapping[int, torch.Tensor], mesh: Mesh, axes: Sequence[str], place: int, dimension: int) -> list[int]:
    """The extents of the parts that differ from one along some axes alone."""
    places = [place]
    for axis in axes:
        places = [other for each in places for other in mesh.group(axis, each)]
    if mesh.state == "emulated":
        return [int(parts[each].shape[dimension]) for each in places]
    own = torch.tensor([int(parts[place].shape[dimension])], device="cpu")
    extents = own
    for axis in reversed(axes):
        group = tuple(mesh.devices[each] for each in mesh.group(axis, place))
        if len(group) > 1:
            communicator = mesh.job.communicator(group)
            extents = communicator.all_gather(extents, 0, [extents.numel()] * len(group))
    return [int(extent) for extent in extents]
