"""Collectives that only move data, as moves of pieces between ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tessera.sharding.exchange.communicator import Extents
from tessera.sharding.transport.contract import Movement, Receipt, TensorPart

WHOLE = TensorPart()


def parts(dim: int, extents: Extents) -> list[TensorPart]:
    """The part of each rank along a dimension."""
    starts = itertools.accumulate(extents, initial=0)
    return [TensorPart(dim, start, length) for start, length in zip(starts, extents, strict=False)]


def all_gather(shape: Sequence[int], dim: int, extents: Extents) -> Movement:
    """All operands, one behind the other."""
    targets = parts(dim, extents)
    receipts = [Receipt(target.shape(shape), WHOLE, target) for target in targets]
    return Movement(TensorPart(dim, 0, sum(extents)).shape(shape), (WHOLE,) * len(extents), tuple(receipts))


def all_to_all(
    shape: Sequence[int], rank: int, split: int, concat: int, split_extents: Extents, concat_extents: Extents
) -> Movement:
    """Every rank's piece of this one's number, one behind the other."""
    sends = parts(split, split_extents)
    targets = parts(concat, concat_extents)
    receipts = [Receipt(target.shape(shape), sends[rank], target) for target in targets]
    whole = TensorPart(concat, 0, sum(concat_extents)).shape(sends[rank].shape(shape))
    return Movement(whole, tuple(sends), tuple(receipts))


def permute(shape: Sequence[int], rank: int, size: int, shift: int) -> Movement:
    """The operand of one rank, to one other."""
    to, source = (rank + shift) % size, (rank - shift) % size
    receipt = Receipt(tuple(shape), WHOLE, WHOLE)
    return Movement(
        tuple(shape),
        tuple(WHOLE if peer == to else None for peer in range(size)),
        tuple(receipt if peer == source else None for peer in range(size)),
    )


def broadcast(shape: Sequence[int], rank: int, size: int, source: int) -> Movement:
    """The operand of one rank, to all."""
    receipt = Receipt(tuple(shape), WHOLE, WHOLE)
    return Movement(
        tuple(shape),
        (WHOLE if rank == source else None,) * size,
        tuple(receipt if peer == source else None for peer in range(size)),
    )


def handed_on(shape: Sequence[int], rank: int) -> Movement:
    """The operand of the first of two ranks, of this shape, to the second."""
    if rank == 0:
        return Movement((0,), (None, WHOLE), (None, None), keeps=True)
    return Movement(tuple(shape), (None, None), (Receipt(tuple(shape), WHOLE, WHOLE), None), keeps=True)


def barrier(size: int) -> Movement:
    """One byte of every rank to all."""
    return all_gather((1,), 0, (1,) * size)
