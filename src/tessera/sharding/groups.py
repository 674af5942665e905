"""Collectives along an axis of a mesh, over the shards that this process holds: all, or that of its own rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tessera.lazy.layouts import Shape
from tessera.sharding import emulated
from tessera.sharding.communicator import COMBINING, Communicator
from tessera.sharding.mesh import Mesh
from tessera.sharding.redistribution import MeshStep


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
            results = _emulated(step, [shards[each] for each in group], *_extents(mesh, step, shape, group))
            done |= zip(group, results, strict=True)
        else:
            communicator = mesh.job.communicator(tuple(mesh.devices[each] for each in group))
            done[place] = _exchanged(step, communicator, shards[place], *_extents(mesh, step, shape, group))
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


def _emulated(
    step: MeshStep, parts: Sequence[torch.Tensor], along: Sequence[int], before: Sequence[int]
) -> list[torch.Tensor]:
    match step.kind:
        case "AllReduce":
            return emulated.all_reduce(parts, COMBINING[step.reduction])
        case "ReduceScatter":
            return emulated.reduce_scatter(parts, step.dim, COMBINING[step.reduction], along)
        case "AllGather":
            return emulated.all_gather(parts, step.dim, along)
        case "AllToAll":
            return emulated.all_to_all(parts, step.dim, step.before, along, before)
        case "Permute":
            return emulated.permute(parts, step.by)
        case "Broadcast":
            return emulated.broadcast(parts, step.by)
    raise AssertionError(f"{step} moves nothing")


def _exchanged(
    step: MeshStep, communicator: Communicator, part: torch.Tensor, along: Sequence[int], before: Sequence[int]
) -> torch.Tensor:
    match step.kind:
        case "AllReduce":
            return communicator.all_reduce(part, COMBINING[step.reduction])
        case "ReduceScatter":
            return communicator.reduce_scatter(part, step.dim, COMBINING[step.reduction], along)
        case "AllGather":
            return communicator.all_gather(part, step.dim, along)
        case "AllToAll":
            return communicator.all_to_all(part, step.dim, step.before, along, before)
        case "Permute":
            return communicator.permute(part, step.by)
        case "Broadcast":
            return communicator.broadcast(part, step.by)
    raise AssertionError(f"{step} moves nothing")
