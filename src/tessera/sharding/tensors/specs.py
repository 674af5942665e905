"""`ShardSpec`: a layout as users write it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.errors import MeshError
from tessera.lazy.layouts import Layout, MeshShape, Shape, layout, replicated
from tessera.sharding.tensors.mesh import Mesh


@dataclass(frozen=True)
class ShardSpec:
    """Which dimensions are split over which axes of a mesh: `partition[i]` over `mesh_axes[i]`.

    A dimension is "row" (the last but one), "col" (the last), its number, or its name where the tensor's dimensions
    have names; None stands for none, and its axes, as all that are not named, hold copies. Several axes, major first,
    split one dimension one after the other: `ShardSpec((0,), (("dp", "tp"),))`. An extent that the devices do not
    divide is split into parts of ceil(n / devices), of which the last ones are short or empty.
    """

    partition: Sequence[str | int | None] = ()
    mesh_axes: Sequence[str | tuple[str, ...]] = ()

    def layout(self, mesh: Mesh, rank: int, dims: Sequence[str] | None = None) -> Layout:
        """The layout of a tensor of so many dimensions, whose names are `dims`, on a mesh.

        Raises MeshError (E_MESH) for dimensions or axes that there are not, and for an axis that is named twice.
        """
        if len(self.partition) != len(self.mesh_axes):
            raise MeshError(f"{self}: {len(self.partition)} dimensions over {len(self.mesh_axes)} axes of the mesh")
        split: list[tuple[str, ...]] = [()] * rank
        used: set[str] = set()
        for entry, axes in zip(self.partition, self.mesh_axes, strict=True):
            over = (axes,) if isinstance(axes, str) else tuple(axes)
            for axis in over:
                if axis not in mesh.shape:
                    raise MeshError(
                        f"{self}: the mesh has no axis {axis!r}", hints=[f"its axes: {', '.join(mesh.axes)}"]
                    )
                if axis in used:
                    raise MeshError(f"{self}: the axis {axis!r} occurs twice")
                used.add(axis)
            if entry is not None:
                dimension = _dimension(entry, rank, dims)
                split[dimension] += over
        return layout(mesh.grid, split)


def layout_on(mesh: Mesh, wanted: ShardSpec | Layout | None, rank: int, dims: Sequence[str] | None = None) -> Layout:
    """The layout on a mesh that a user asks for, of a tensor of so many dimensions; None has every device hold all.

    Raises MeshError (E_MESH) for one that the mesh does not have, and for what is no layout.
    """
    if isinstance(wanted, Layout):
        if wanted.mesh != mesh.grid or len(wanted.dims) != rank or wanted.pending:
            raise MeshError(f'the layout "{wanted}" of {wanted.mesh} for {rank} dimensions on {mesh.grid}')
        return wanted
    if wanted is None:
        return replicated(mesh.grid, rank)
    if not isinstance(wanted, ShardSpec):
        raise MeshError(f"{wanted!r} is no layout", hints=['dist.ShardSpec((0, "col"), ("dp", "tp")), or x.layout'])
    return wanted.layout(mesh, rank, dims)


def _dimension(entry: str | int, rank: int, dims: Sequence[str] | None) -> int:
    number = entry
    if isinstance(entry, str):
        if dims is not None and entry in dims:
            number = list(dims).index(entry)
        else:
            number = {"row": -2, "col": -1}.get(entry, entry)
    if isinstance(number, bool) or not isinstance(number, int) or not -rank <= number < rank:
        named = "" if dims is None else f" named {', '.join(dims)}"
        raise MeshError(
            f"no dimension {entry!r} of {rank}{named}", hints=['"row", "col", a number, or a name out of dims=']
        )
    return number % rank


def shard_summary(shape: Shape, itemsize: int, laid: Layout) -> str:
    """What a shard takes: `166.7 GB for each of 6 x 4 shards`."""
    nbytes = math.prod(laid.largest_shape(shape)) * itemsize
    counts = [str(_parts(laid.mesh, axes)) for axes in laid.dims if axes]
    return f"{_size(nbytes)} for each of {' x '.join(counts)} shards" if counts else f"{_size(nbytes)} on each device"


def _parts(mesh: MeshShape, axes: Sequence[str]) -> int:
    return math.prod(mesh.size(axis) for axis in axes)


def _size(nbytes: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"
