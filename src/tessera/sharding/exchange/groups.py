"""Collectives along an axis of a mesh, over the shards that this process holds: all, or that of its own rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from tessera.lazy.layouts import Shape
from tessera.profiling.recording import instrumentation
from tessera.sharding.exchange import emulated
from tessera.sharding.exchange.communicator import (
    COMBINING,
    AddressedStart,
    CollectiveHandle,
    Extents,
    Reduction,
    StartingCommunicator,
)
from tessera.sharding.partitioning.redistribution import MeshStep, MeshStepKind
from tessera.sharding.tensors.mesh import Mesh

H_contra = TypeVar("H_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)

Parts: TypeAlias = Mapping[int, torch.Tensor]
"""By place, what devices have. Tensors are contiguous."""

Waiting: TypeAlias = Callable[[], dict[int, torch.Tensor]]
"""Gives by place what a step made, when it is there. Tensors are fresh."""


class GroupExchange:
    """A step of tensors of one shape: who takes part, and what of it is whose, is worked out once.

    On a running mesh it is a collective: every rank begins the same ones in the same order.
    """

    def __init__(self, mesh: Mesh, step: MeshStep, shape: Shape, pieces: Sequence[int] | None = None) -> None:
        """`pieces`: by place, the extents of what is scattered, where these are not those of one tensor."""
        self.mesh, self.step = mesh, step
        self._groups: dict[int, _Group] = {}
        """Of each place whose shards are here, and of others of its group on an emulated mesh."""
        for place in mesh.places:
            if place not in self._groups:
                places = mesh.group(step.axis, place)
                along, before = _extents(mesh, step, shape, places)
                if pieces is not None:
                    along = tuple([pieces[each] for each in places])
                self._groups |= dict.fromkeys(places, _Group(places, along, before))
        self._starting: _Starting | None = None

    def begin(self, shards: Parts) -> Waiting:
        """Begins it, with what devices have."""
        step = self.step
        if self.mesh.state == "emulated":
            done: dict[int, torch.Tensor] = {}
            for places, along, before in dict.fromkeys(self._groups.values()):
                made = _exchanged(emulated, step, [shards[each] for each in places], along, before)
                done |= zip(places, made, strict=True)
            return lambda: done
        ((place, shard),) = shards.items()
        _, along, before = self._groups[place]
        if self._starting is None:
            self._starting = _Starting(self.communicator)
        handle = _exchanged(self._starting, step, shard, along, before)

        def waited() -> dict[int, torch.Tensor]:
            result = handle.wait()
            note_end(handle, step, shard.nbytes)
            return {place: result}

        return waited

    def addressed(self, shape: Shape, dtype: torch.dtype) -> AddressedStart | None:
        """What begins it on a running mesh with the addresses of an operand of this shape and of its result; None where
        only tensors are exchanged.
        """
        step, by = self.step, self.communicator
        along = self._groups[self.mesh.places[0]].along
        match step.kind:
            case "AllReduce":
                return by.addressed_all_reduce(shape, dtype, COMBINING[step.reduction])
            case "ReduceScatter":
                return by.addressed_reduce_scatter(shape, dtype, step.dim, COMBINING[step.reduction], along)
            case "AllGather":
                return by.addressed_all_gather(shape, dtype, step.dim, along)
        return None

    @property
    def goes_on(self) -> bool:
        """Whether what was begun comes about by itself."""
        return self.mesh.state == "emulated" or self.communicator.in_background

    @property
    def communicator(self) -> StartingCommunicator:
        """That of the one group that this process takes part in, on a running mesh."""
        (place,) = self.mesh.places
        return self.mesh.job.communicator(tuple(self.mesh.devices[each] for each in self._groups[place].places))


class PackedExchange:
    """Sums of several tensors that travel as one: what each device gives is one behind the other, for each rank."""

    def __init__(self, mesh: Mesh, steps: Sequence[MeshStep], shapes: Sequence[Shape]) -> None:
        self._steps, self._whole = steps, steps[0].kind == "AllReduce"
        pairs = list(zip(steps, shapes, strict=True))
        at = [mesh.grid.coordinates(place) for place in range(mesh.grid.devices)]
        self._own = [[step.target.local_shape(shape, each) for step, shape in pairs] for each in at]
        self._along: dict[int, list[tuple[int, ...]]] = {}
        """By place, the extents that each tensor is cut into for the ranks of the group."""
        if self._whole:
            self._one = GroupExchange(mesh, steps[0], (0,))
            return
        for place in mesh.places:
            group = mesh.group(steps[0].axis, place)
            self._along[place] = [_extents(mesh, step, shape, group)[0] for step, shape in pairs]
        sizes = [sum(map(math.prod, own)) for own in self._own]
        self._one = GroupExchange(mesh, replace(steps[0], dim=0), shapes[0], sizes)

    @property
    def goes_on(self) -> bool:
        """Whether what was begun comes about by itself."""
        return self._one.goes_on

    def begin(self, shards: Sequence[Parts]) -> Callable[[], list[dict[int, torch.Tensor]]]:
        """Begins it, with what devices have of each of the tensors."""
        waiting = self._one.begin({place: self._packed([each[place] for each in shards], place) for place in shards[0]})
        return lambda: self._unpacked(waiting())

    def _packed(self, parts: Sequence[torch.Tensor], place: int) -> torch.Tensor:
        if self._whole:
            return torch.cat([part.reshape(-1) for part in parts])
        each = zip(parts, self._steps, self._along[place], strict=True)
        pieces = [torch.split(part, list(along), step.dim) for part, step, along in each]
        return torch.cat([piece[rank].reshape(-1) for rank in range(len(pieces[0])) for piece in pieces])

    def _unpacked(self, made: Parts) -> list[dict[int, torch.Tensor]]:
        found: list[dict[int, torch.Tensor]] = [{} for _ in self._steps]
        for place, flat in made.items():
            shapes = self._own[place]
            pieces = torch.split(flat, [math.prod(shape) for shape in shapes])
            for held, piece, shape in zip(found, pieces, shapes, strict=True):
                held[place] = piece.view(shape)
        return found


class _Group(NamedTuple):
    """Devices that exchange, and the extents of what they have (`_extents`), in their order."""

    places: tuple[int, ...]
    along: tuple[int, ...]
    before: tuple[int, ...]


def note_end(handle: CollectiveHandle, step: MeshStep, nbytes: int) -> None:
    """Notes what records say of a collective that has ended, of an operand of so many bytes."""
    facts = handle.facts
    if facts is not None:
        name = _NAMES[step.kind]
        instrumentation.note(
            "collective",
            name,
            facts.start_ns,
            facts.end_ns,
            operator=name,
            bytes=float(nbytes),
            correlation=facts.identity,
            stream_name=f"axis {step.axis}",
            stream_id=_track(step.axis),
            collective_type=name,
            collective_bytes=float(nbytes),
            collective_axis=step.axis,
            **facts.columns(nbytes, is_whole_sum=step.kind == "AllReduce"),
        )


_NAMES: Final[Mapping[MeshStepKind, str]] = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "AllToAll": "all_to_all",
    "Permute": "permute",
    "Broadcast": "broadcast",
}
"""What records call collectives."""

_tracks: Final[dict[str, int]] = {}


def _track(axis: str) -> int:
    """The number of an axis's track, on which its collectives stand beside kernels; streams have positive ones."""
    return _tracks.setdefault(axis, -1 - len(_tracks))


def _extents(mesh: Mesh, step: MeshStep, shape: Shape, group: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The extents along the dimension of a step by rank of the group: of the shards after it, which scatters, or before
    it, which gathers; and before it along the one that an AllToAll splits no more.
    """
    coordinates = [mesh.grid.coordinates(place) for place in group]
    laid = step.source if step.kind == "AllGather" else step.target
    along = [laid.local_shape(shape, each)[step.dim] for each in coordinates] if step.dim >= 0 else []
    before = [step.source.local_shape(shape, each)[step.before] for each in coordinates] if step.before >= 0 else []
    return tuple(along), tuple(before)


class _Collectives(Protocol[H_contra, M_co]):
    """Who exchanges: emulation, of what all ranks have, or a communicator, which begins it with what one has."""

    def all_reduce(self, x: H_contra, op: Reduction, /) -> M_co: ...

    def all_gather(self, x: H_contra, dim: int, extents: Extents, /) -> M_co: ...

    def reduce_scatter(self, x: H_contra, dim: int, op: Reduction, extents: Extents, /) -> M_co: ...

    def all_to_all(
        self, x: H_contra, split: int, concat: int, split_extents: Extents, concat_extents: Extents, /
    ) -> M_co: ...

    def permute(self, x: H_contra, shift: int, /) -> M_co: ...

    def broadcast(self, x: H_contra, source: int, /) -> M_co: ...


class _Starting:
    """A communicator whose collectives are begun, and ended by their handles."""

    def __init__(self, communicator: StartingCommunicator) -> None:
        self.all_reduce = communicator.start_all_reduce
        self.all_gather = communicator.start_all_gather
        self.reduce_scatter = communicator.start_reduce_scatter
        self.all_to_all = communicator.start_all_to_all
        self.permute = communicator.start_permute
        self.broadcast = communicator.start_broadcast


def _exchanged(by: _Collectives[H_contra, M_co], step: MeshStep, x: H_contra, along: Extents, before: Extents) -> M_co:
    match step.kind:
        case "AllReduce":
            return by.all_reduce(x, COMBINING[step.reduction])
        case "ReduceScatter":
            return by.reduce_scatter(x, step.dim, COMBINING[step.reduction], along)
        case "AllGather":
            return by.all_gather(x, step.dim, along)
        case "AllToAll":
            return by.all_to_all(x, step.dim, step.before, along, before)
        case "Permute":
            return by.permute(x, step.by)
        case "Broadcast":
            return by.broadcast(x, step.by)
    raise AssertionError(f"{step} moves nothing")
