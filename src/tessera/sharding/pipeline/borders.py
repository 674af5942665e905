"""What crosses the border between two stages: how it lies, and how it travels between the meshes of their ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from tessera.dtypes import DType, dtype_of
from tessera.errors import DeviceError, PipelineError
from tessera.lazy.devices import CPU, is_mesh
from tessera.lazy.layouts import Layout, Shape, layout
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf, Placeholder, result_structure
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.shards import Shards, shards_of

TOLD_BYTES: Final = 4096
_ALIGNED: Final = 64


class Crossing(NamedTuple):
    """A tensor that crosses; without a layout it lies on one device."""

    shape: Shape
    dtype: DType
    layout: Layout | None

    @property
    def structure(self) -> Structure:
        """What it is as a leaf."""
        if self.layout is None:
            return result_structure(self.shape, self.dtype)
        return interning.sharded(self.shape, self.dtype, self.layout)

    def __str__(self) -> str:
        laid = "" if self.layout is None else f' as "{self.layout}"'
        return f"{self.dtype}{list(self.shape)}{laid}"

    @property
    def is_float(self) -> bool:
        """Whether it has a cotangent."""
        return self.dtype.kind == "float"


@dataclass(frozen=True)
class Border:
    """What a stage hands to the next: a tensor, or a tuple of them."""

    crossings: tuple[Crossing, ...]
    is_tuple: bool

    @property
    def cotangents(self) -> tuple[Crossing, ...]:
        """What comes back over it."""
        return tuple(each for each in self.crossings if each.is_float)

    def told(self) -> torch.Tensor:
        """The border in bytes, for the rank of the next stage."""
        tensors = [(each.shape, each.dtype.name, each.layout and each.layout.dims) for each in self.crossings]
        text = json.dumps([self.is_tuple, tensors]).encode()
        if len(text) > TOLD_BYTES:
            raise PipelineError(f"{len(self.crossings)} tensors between two stages", hints=["hand on fewer of them"])
        return torch.frombuffer(bytearray(text.ljust(TOLD_BYTES)), dtype=torch.uint8)


def border_read(told: torch.Tensor, mesh: Mesh) -> Border:
    """The border that `told` says, to a stage on a mesh."""
    is_tuple, tensors = json.loads(bytes(told.tolist()))
    return Border(
        tuple(
            Crossing(tuple(shape), dtype_of(name), None if dims is None else layout(mesh.grid, dims))
            for shape, name, dims in tensors
        ),
        is_tuple,
    )


class StagePlaceholder(Placeholder):
    """The argument of a stage that is traced, on the mesh of the stage's ranks."""

    __slots__ = ()

    def __init__(self, structure: Structure, mesh: Mesh) -> None:
        super().__init__(structure)
        if structure.layout is not None:
            self.owner = Shards(mesh, structure.shape, structure.dtype, structure.layout, {})


def on_stage(leaf: Leaf, mesh: Mesh, stage: Mesh, axis: str, number: int) -> Leaf:
    """A leaf on the mesh of a whole pipeline, as the ranks of one stage hold it, which are those at `number` along the
    axis. Raises PipelineError (E_PIPELINE) for one that is split along the axis.
    """
    laid = leaf.structure.layout
    if laid is None or shards_of(leaf).mesh != mesh:
        return leaf
    if any(axis in axes for axes in laid.dims):
        raise PipelineError(
            f'a batch that lies as "{laid}": split over the stages, along {axis!r}',
            hints=[f"every stage's ranks hold the batch: leave {axis!r} out of its layout"],
        )
    held: dict[int, Leaf] = {}
    shards = shards_of(leaf).leaves()
    for place in range(stage.grid.devices):
        whole = mesh.grid.place({**stage.grid.coordinates(place), axis: number})
        if whole in shards:
            held[place] = shards[whole]
    return Shards(stage, leaf.shape, leaf.dtype, layout(stage.grid, laid.dims), held).leaf()


def relabelled(leaf: Leaf, mesh: Mesh) -> Leaf:
    """A leaf of one stage as one of another stage's mesh, over the same memory: what moves on an emulated mesh."""
    if leaf.structure.layout is None:
        return leaf
    made = layout(mesh.grid, leaf.structure.layout.dims)
    return Shards(mesh, leaf.shape, leaf.dtype, made, shards_of(leaf).leaves()).leaf()


def check_microbatches(structure: Structure, count: int) -> None:
    """Raises PipelineError (E_PIPELINE) for a batch whose rows, or those of a rank, `count` does not divide."""
    shape, laid = structure.shape, structure.layout
    if shape and shape[0] % count == 0:
        if laid is None:
            return
        part = (shape[0] // count, *shape[1:])
        places = map(laid.mesh.coordinates, range(laid.mesh.devices))
        if all(laid.local_shape(shape, at)[0] == count * laid.local_shape(part, at)[0] for at in places):
            return
    raise PipelineError(
        f"{count} microbatches of a batch of shape {shape}" + ("" if laid is None else f' as "{laid}"'),
        hints=["each rank's rows, which are the first dimension, have to be a multiple of microbatches="],
    )


def microbatch(leaf: Leaf, number: int, count: int) -> Leaf:
    """A part of the rows of a batch: of each shard's rows, so that nothing moves."""
    if leaf.structure.layout is None:
        return _rows(leaf, number, count)
    shards = shards_of(leaf)
    parts = {place: _rows(each, number, count) for place, each in shards.leaves().items()}
    shape = (leaf.shape[0] // count, *leaf.shape[1:])
    return Shards(shards.mesh, shape, leaf.dtype, leaf.structure.layout, parts).leaf()


def _rows(leaf: Leaf, number: int, count: int) -> Leaf:
    rows = leaf.shape[0] // count
    return from_torch(to_torch(leaf)[number * rows : (number + 1) * rows])


def packed(leaves: Sequence[Leaf], crossings: Sequence[Crossing], place: int, into: torch.Tensor) -> torch.Tensor:
    """The elements that the rank at a place of the stage's mesh holds, one tensor behind the other."""
    at = 0
    for leaf, crossing in zip(leaves, crossings, strict=True):
        assert (leaf.shape, leaf.dtype, leaf.structure.layout) == crossing, "a program gives what was said of it"
        shard = shards_of(leaf).leaves()[place] if leaf.structure.layout is not None else leaf
        elements = to_torch(shard).contiguous().view(-1).view(torch.uint8)
        into[at : at + elements.numel()].copy_(elements)
        at += _aligned(elements.numel())
    return into


def unpacked(message: torch.Tensor, crossings: Sequence[Crossing], mesh: Mesh | None, place: int) -> list[Leaf]:
    """The tensors that a message holds, as leaves on the mesh of the stage that reads them."""
    at = 0
    leaves: list[Leaf] = []
    for each in crossings:
        shape = _local_shape(each, mesh, place)
        nbytes = math.prod(shape) * each.dtype.itemsize
        part = from_torch(message[at : at + nbytes].view(each.dtype.torch).view(shape))
        at += _aligned(nbytes)
        if each.layout is None or mesh is None:
            leaves.append(part)
        else:
            leaves.append(Shards(mesh, each.shape, each.dtype, each.layout, {place: part}).leaf())
    return leaves


def message_bytes(crossings: Sequence[Crossing], mesh: Mesh | None, place: int) -> int:
    """How long the message of a rank is."""
    return sum(_aligned(math.prod(_local_shape(each, mesh, place)) * each.dtype.itemsize) for each in crossings)


def crossing_of(structure: Structure, laid: Layout | None) -> Crossing:
    """A result of a stage that is handed on. Raises DeviceError (E_DEVICE) for one that is not in CPU memory."""
    if structure.device not in (None, CPU) and not is_mesh(structure.device):
        raise DeviceError(f"a stage's result on {structure.device}", hints=["ranks exchange CPU memory"])
    return Crossing(structure.shape, structure.dtype, laid)


def _local_shape(crossing: Crossing, mesh: Mesh | None, place: int) -> Shape:
    if crossing.layout is None or mesh is None:
        return crossing.shape
    return crossing.layout.local_shape(crossing.shape, mesh.grid.coordinates(place))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
