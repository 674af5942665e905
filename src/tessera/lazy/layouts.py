"""Layouts: how a tensor is shared out over a mesh of devices.

A layout says for each dimension of a tensor along which axes of the mesh it is split, major first, and along which axes
results are *pending*: every device holds a part, and the tensor is what the parts add up to (or the largest of them,
and so on). Along all other axes each device holds the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from tessera.ir.anchors.anchor import Reduction

Shape: TypeAlias = tuple[int, ...]
Coordinates: TypeAlias = Mapping[str, int]
"""The place of a device along each axis of its mesh."""

Range: TypeAlias = tuple[int, int]
"""The first element along a dimension, and the one past the last."""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """The axes of a mesh with their sizes, in order. Which device stands where, the mesh knows."""

    axes: tuple[tuple[str, int], ...]

    def size(self, axis: str) -> int:
        """The number of devices along an axis."""
        return next(size for name, size in self.axes if name == axis)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    def coordinates(self, place: int) -> dict[str, int]:
        """The coordinates of the device at a place, of which the last axis counts fastest."""
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            place, found[name] = divmod(place, size)
        return dict(reversed(found.items()))

    def place(self, coordinates: Coordinates) -> int:
        """The place of the device at some coordinates."""
        place = 0
        for name, size in self.axes:
            place = place * size + coordinates[name]
        return place

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies on a mesh. Layouts of one value are one object (`layout`).

    `dims` has the axes by which each dimension is split, major first; `pending` axes along which parts are still to be
    reduced, and by what. An axis occurs once at most, and one of a single device never.
    """

    mesh: MeshShape
    dims: tuple[tuple[str, ...], ...]
    pending: tuple[tuple[str, Reduction], ...] = ()

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole tensor."""
        return not self.pending and not any(self.dims)

    def region(self, shape: Shape, coordinates: Coordinates) -> tuple[Range, ...]:
        """The elements of a tensor of this shape that the device at some coordinates holds, along each dimension."""
        return tuple([
            split(extent, tuple((coordinates[axis], self.mesh.size(axis)) for axis in axes))
            for extent, axes in zip(shape, self.dims, strict=True)
        ])  # fmt: skip

    def local_shape(self, shape: Shape, coordinates: Coordinates) -> Shape:
        """The extents of what a device holds of a tensor of this shape."""
        return tuple([end - first for first, end in self.region(shape, coordinates)])

    def largest_shape(self, shape: Shape) -> Shape:
        """The extents of the largest shard: that of the first device."""
        return self.local_shape(shape, dict.fromkeys([name for name, _ in self.mesh.axes], 0))

    def __str__(self) -> str:
        dims = ", ".join("*".join(axes) or "-" for axes in self.dims)
        return " | ".join([dims, *(f"{reduction} {axis}" for axis, reduction in self.pending)])


_layouts: Final[dict[Layout, Layout]] = {}


def layout(mesh: MeshShape, dims: Sequence[Sequence[str]], pending: Sequence[tuple[str, Reduction]] = ()) -> Layout:
    """The one layout of this value; axes of a single device, along which nothing is split, are left out."""
    several = {name for name, size in mesh.axes if size > 1}
    kept = tuple(tuple(axis for axis in axes if axis in several) for axes in dims)
    made = Layout(mesh, kept, tuple(sorted(pair for pair in pending if pair[0] in several)))
    return _layouts.setdefault(made, made)


def replicated(mesh: MeshShape, rank: int) -> Layout:
    """The layout in which every device holds the whole tensor, of so many dimensions."""
    return layout(mesh, ((),) * rank)


@lru_cache(maxsize=1 << 14)
def split(extent: int, places: tuple[tuple[int, int], ...]) -> Range:
    """The elements along a dimension that are left after it is split at each (place, parts) in turn: into parts of
    ceil(n / parts), of which the last ones may be short or empty. So split torch's DTensor and its checkpoints.
    """
    first, end = 0, extent
    for place, parts in places:
        size = -(-(end - first) // parts)
        start = min(first + place * size, end)
        first, end = start, min(start + size, end)
    return first, end
