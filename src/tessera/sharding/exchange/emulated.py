"""Collectives of a group whose ranks are all in this process: functions of the tensors of all ranks, in rank order.

They say what every `Communicator` gives: result i is that of rank i, and is fresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from tessera.sharding.exchange.communicator import Extents, Reduction, combined

Parts: TypeAlias = Sequence[torch.Tensor]


def all_reduce(parts: Parts, op: Reduction) -> list[torch.Tensor]:
    """See `Communicator.all_reduce`."""
    total = combined(parts, op)
    return [total, *(total.clone() for _ in parts[1:])]


def all_gather(parts: Parts, dim: int, extents: Extents) -> list[torch.Tensor]:
    """See `Communicator.all_gather`."""
    assert [part.shape[dim] for part in parts] == list(extents), "the extents of the parts"
    whole = torch.cat(list(parts), dim)
    return [whole, *(whole.clone() for _ in parts[1:])]


def reduce_scatter(parts: Parts, dim: int, op: Reduction, extents: Extents) -> list[torch.Tensor]:
    """See `Communicator.reduce_scatter`."""
    return [piece.clone(memory_format=torch.contiguous_format) for piece in _cut(combined(parts, op), dim, extents)]


def all_to_all(
    parts: Parts, split: int, concat: int, split_extents: Extents, concat_extents: Extents
) -> list[torch.Tensor]:
    """See `Communicator.all_to_all`."""
    assert split != concat, "one dimension is split and concatenated along"
    assert [part.shape[concat] for part in parts] == list(concat_extents), "the extents of the parts"
    pieces = [_cut(part, split, split_extents) for part in parts]
    return [torch.cat([sent[rank] for sent in pieces], concat) for rank in range(len(parts))]


def permute(parts: Parts, shift: int) -> list[torch.Tensor]:
    """See `Communicator.permute`."""
    return [parts[(rank - shift) % len(parts)].clone() for rank in range(len(parts))]


def broadcast(parts: Parts, source: int) -> list[torch.Tensor]:
    """See `Communicator.broadcast`."""
    return [parts[source].clone() for _ in parts]


def _cut(whole: torch.Tensor, dim: int, extents: Extents) -> list[torch.Tensor]:
    assert whole.shape[dim] == sum(extents), "extents add up to that of the dimension"
    return list(torch.split(whole, list(extents), dim))
