"""Collectives along an axis of a mesh, over the shards that this process holds: all, or that of its own rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import torch

from tessera.lazy.layouts import Shape
from tessera.profiling.recording import instrumentation
from tessera.sharding.exchange import emulated
from tessera.sharding.exchange.communicator import (
    COMBINING,
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


def begun(mesh: Mesh, step: MeshStep, shape: Shape, shards: Parts) -> Waiting:
    """Begins a step of a tensor of this shape, of its shards.

    On a running mesh it is a collective: every rank comes here for the same steps in the same order.
    """

    def exchanged(by: _Collectives[H_contra, M_co], x: H_contra, group: Sequence[int]) -> M_co:
        return _exchanged(by, step, x, *_extents(mesh, step, shape, group))

    return _begun(mesh, step, shards, exchanged)


def _begun(mesh: Mesh, step: MeshStep, shards: Parts, exchanged: _Exchanged) -> Waiting:
    """Begins an exchange along a step's axis in every group whose shards are here."""
    if mesh.state == "emulated":
        done: dict[int, torch.Tensor] = {}
        for place in mesh.places:
            if place not in done:
                group = mesh.group(step.axis, place)
                done |= zip(group, exchanged(emulated, [shards[each] for each in group], group), strict=True)
        return lambda: done
    (place,) = mesh.places
    group = mesh.group(step.axis, place)
    communicator = mesh.job.communicator(tuple(mesh.devices[each] for each in group))
    handle = exchanged(_Starting(communicator), shards[place], group)
    return _ending(handle, step, place, shards[place].nbytes)


def begun_together(mesh: Mesh, steps: Sequence[MeshStep], shapes: Sequence[Shape], shards: Sequence[Parts]) -> Waiting:
    """Begins sums of several tensors as one: what each device gives is one behind the other. `unpacked` takes the
    results apart.
    """
    first = steps[0]
    flat: dict[int, torch.Tensor] = {}
    for place in mesh.places:
        pieces = [_for_each_rank(mesh, *each, place) for each in zip(steps, shapes, shards, strict=True)]
        flat[place] = torch.cat([piece[rank].reshape(-1) for rank in range(len(pieces[0])) for piece in pieces])
    if first.kind == "AllReduce":
        return begun(mesh, first, (0,), flat)
    return _scattered_together(mesh, steps, shapes, flat)


def _scattered_together(
    mesh: Mesh, steps: Sequence[MeshStep], shapes: Sequence[Shape], flat: dict[int, torch.Tensor]
) -> Waiting:
    """A scatter of what is packed rank by rank, of which each gets what is its own."""
    first = steps[0]

    def extents(group: Sequence[int]) -> list[int]:
        at = [mesh.grid.coordinates(place) for place in group]
        return [
            sum(math.prod(s.target.local_shape(shape, each)) for s, shape in zip(steps, shapes, strict=True))
            for each in at
        ]

    def exchanged(by: _Collectives[H_contra, M_co], x: H_contra, group: Sequence[int]) -> M_co:
        return by.reduce_scatter(x, 0, COMBINING[first.reduction], extents(group))

    return _begun(mesh, first, flat, exchanged)


def _ending(handle: CollectiveHandle, step: MeshStep, place: int, nbytes: int) -> Waiting:
    """Waits for a collective, and notes what records say of it."""

    def waited() -> dict[int, torch.Tensor]:
        result = handle.wait()
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
        return {place: result}

    return waited


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


def _for_each_rank(mesh: Mesh, step: MeshStep, shape: Shape, shards: Parts, place: int) -> list[torch.Tensor]:
    """What a device gives to each rank of its group; all to all of them where a sum is whole everywhere."""
    if step.kind == "AllReduce":
        return [shards[place]]
    group = mesh.group(step.axis, place)
    along, _ = _extents(mesh, step, shape, group)
    return list(torch.split(shards[place], along, step.dim))


def unpacked(
    mesh: Mesh, steps: Sequence[MeshStep], shapes: Sequence[Shape], made: Parts
) -> list[dict[int, torch.Tensor]]:
    """The results of steps that were begun together, each by place."""
    found: list[dict[int, torch.Tensor]] = [{} for _ in steps]
    for place, flat in made.items():
        start, at = 0, mesh.grid.coordinates(place)
        for held, step, shape in zip(found, steps, shapes, strict=True):
            own = step.target.local_shape(shape, at)
            count = math.prod(own)
            held[place] = flat[start : start + count].view(own)
            start += count
    return found


def _extents(mesh: Mesh, step: MeshStep, shape: Shape, group: Sequence[int]) -> tuple[list[int], list[int]]:
    """The extents along the dimension of a step by rank of the group: of the shards after it, which scatters, or before
    it, which gathers; and before it along the one that an AllToAll splits no more.
    """
    coordinates = [mesh.grid.coordinates(place) for place in group]
    laid = step.source if step.kind == "AllGather" else step.target
    along = [laid.local_shape(shape, each)[step.dim] for each in coordinates] if step.dim >= 0 else []
    before = [step.source.local_shape(shape, each)[step.before] for each in coordinates] if step.before >= 0 else []
    return along, before


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


class _Exchanged(Protocol):
    """What is exchanged in a group, by whoever exchanges."""

    def __call__(self, by: _Collectives[H_contra, M_co], x: H_contra, group: Sequence[int]) -> M_co: ...


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
