"""Collectives along an axis of a mesh, over the shards that this process holds: all, or that of its own rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from tessera.lazy.layouts import Shape
from tessera.sharding.exchange import emulated
from tessera.sharding.exchange.communicator import COMBINING, Extents, Reduction
from tessera.sharding.partitioning.redistribution import MeshStep
from tessera.sharding.tensors.mesh import Mesh

H_contra = TypeVar("H_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)


def moved(mesh: Mesh, step: MeshStep, shape: Shape, shards: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """What a step of a tensor of this shape makes of its shards, by place. Tensors are contiguous, and results fresh.

    On a running mesh it is a collective: every rank comes here for the same steps in the same order.
    """
    done: dict[int, torch.Tensor] = {}
    for place in mesh.places:
        if place in done:
            continue
        group = mesh.group(step.axis, place)
        if mesh.state == "emulated":
            parts = [shards[each] for each in group]
            results: list[torch.Tensor] = _exchanged(emulated, step, parts, *_extents(mesh, step, shape, group))
            done |= zip(group, results, strict=True)
        else:
            communicator = mesh.job.communicator(tuple(mesh.devices[each] for each in group))
            done[place] = _exchanged(communicator, step, shards[place], *_extents(mesh, step, shape, group))
    return done


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
    """Who exchanges: what a rank has by a communicator, or what all have by emulation."""

    def all_reduce(self, x: H_contra, op: Reduction, /) -> M_co: ...

    def all_gather(self, x: H_contra, dim: int, extents: Extents, /) -> M_co: ...

    def reduce_scatter(self, x: H_contra, dim: int, op: Reduction, extents: Extents, /) -> M_co: ...

    def all_to_all(
        self, x: H_contra, split: int, concat: int, split_extents: Extents, concat_extents: Extents, /
    ) -> M_co: ...


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
        case "Slice":
            raise AssertionError("a cut moves nothing")
