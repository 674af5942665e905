"""The part of a mesh on which a value of a program lies, and which of its places this process holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tessera.sharding.partitioning.program import Home, coordinates_at
from tessera.sharding.tensors.mesh import Mesh

V = TypeVar("V")


def part_of(mesh: Mesh, home: Home) -> Mesh:
    """The mesh that a home is on a mesh."""
    for part in home:
        mesh = mesh[part.axis, part.key]
    return mesh


@dataclass(frozen=True)
class HeldPlaces:
    """`own` has by place of the whole mesh, of those that this process holds and that are at home, the place there."""

    mesh: Mesh
    own: Mapping[int, int]

    def inwards(self, values: Mapping[int, V]) -> dict[int, V]:
        """By place at home what is by place of the whole mesh."""
        return {own: values[place] for place, own in self.own.items()}

    def outwards(self, values: Mapping[int, V]) -> dict[int, V]:
        """By place of the whole mesh what is by place at home."""
        return {place: values[own] for place, own in self.own.items()}


def held_places(mesh: Mesh, homes: Iterable[Home]) -> dict[Home, HeldPlaces]:
    """The places of each home on a mesh. Raises as `mesh.places` does."""
    found: dict[Home, HeldPlaces] = {}
    for home in homes:
        if not home:
            found[home] = HeldPlaces(mesh, {place: place for place in mesh.places})
            continue
        part = part_of(mesh, home)
        own: dict[int, int] = {}
        for place in mesh.places:
            at = coordinates_at(home, mesh.grid.coordinates(place))
            if at is not None:
                own[place] = part.grid.place(at)
        found[home] = HeldPlaces(part, own)
    return found
