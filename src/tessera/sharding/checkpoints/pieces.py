"""Tensors as pieces of files: which elements of a tensor this process holds, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from tessera.lazy.layouts import Layout, Shape
from tessera.sharding.tensors.mesh import Mesh

Number: TypeAlias = bool | int | float | str | None
"""What is kept beside tensors."""


class Piece(NamedTuple):
    """Elements of a tensor from `offsets` on, in every dimension."""

    offsets: tuple[int, ...]
    elements: torch.Tensor


class Pieces(NamedTuple):
    """The pieces of a tensor of this shape and dtype that this process has."""

    shape: Shape
    dtype: torch.dtype
    held: Sequence[Piece]


class HeldRegion(NamedTuple):
    """The elements that a device holds: from `offsets` on, as many as `sizes` says."""

    offsets: tuple[int, ...]
    sizes: Shape


def regions(shape: Shape, mesh: Mesh, laid: Layout) -> dict[int, HeldRegion]:
    """What this process holds of a tensor on a mesh, by place; nothing on a rank that has no device of the mesh."""
    found = {}
    for place in () if mesh.state == "running" and mesh.job.rank not in mesh.devices else mesh.places:
        region = laid.region(shape, mesh.grid.coordinates(place))
        found[place] = HeldRegion(tuple(first for first, _ in region), tuple(end - first for first, end in region))
    return found


def pieces_of(shape: Shape, dtype: torch.dtype, held: Mapping[HeldRegion, torch.Tensor]) -> Pieces:
    """Regions as pieces: none that is empty, but of a tensor without elements a single one."""
    filled = [Piece(at.offsets, elements) for at, elements in held.items() if 0 not in at.sizes]
    if not filled and 0 in shape and held:
        filled = [Piece((0,) * len(shape), torch.empty(shape, dtype=dtype, device="cpu"))]
    return Pieces(shape, dtype, filled)
