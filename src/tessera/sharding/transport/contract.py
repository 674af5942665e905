"""What a transport is asked for and what it may rely on: exchanges of pieces of tensors between the ranks of a group.

Every exchange is a generator of two parts: up to its `yield` it starts, and returns at once as far as the transport
can; behind it, it ends, and its value is the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, NoReturn, Protocol, TypeAlias

import torch

from tessera.sharding.exchange.communicator import ExchangeMemory, Reduction

Exchange: TypeAlias = Generator[None, None, torch.Tensor]

AddressedExchange: TypeAlias = Callable[[ExchangeMemory, ExchangeMemory, int], Generator[None, None, None]]
"""An exchange of an operand, of where its result goes, and of a fingerprint."""


class TensorPart(NamedTuple):
    """A part of a tensor: `length` elements along a dimension, from `start` on; all of it where `dim` is None."""

    dim: int | None = None
    start: int = 0
    length: int = 0

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The part of a tensor, as a view."""
        return x if self.dim is None else x.narrow(self.dim, self.start, self.length)

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of the part of a tensor."""
        return tuple(self.length if dim == self.dim else extent for dim, extent in enumerate(whole))

    def is_contiguous(self, whole: Sequence[int]) -> bool:
        """Whether the part of a contiguous tensor is contiguous."""
        return self.dim is None or math.prod(whole[: self.dim]) == 1


class Receipt(NamedTuple):
    """What comes from a rank: the shape of its operand, which part of that, and to which part of the result."""

    shape: tuple[int, ...]
    source: TensorPart
    target: TensorPart


class Movement(NamedTuple):
    """Who sends what to whom: for each rank of the group what it gets of the own operand, and what comes from it; None
    where that is nothing. `keeps` says that nobody writes to the operand any more, so that the exchange may end on
    this rank before others have read it.
    """

    shape: tuple[int, ...]
    sends: tuple[TensorPart | None, ...]
    receipts: tuple[Receipt | None, ...]
    keeps: bool = False


class Waiting(Protocol):
    """What the job does while a collective waits."""

    fault_address: int
    """Of a 32-bit word that is not 0 once the job has failed."""

    def again(self, missing: Sequence[int]) -> None:
        """Is called some ten times a second, with the ranks of the group that are waited for. Raises what has gone
        wrong: a lost rank, a mismatch, patience that has ended.
        """

    def mismatch(self, peer: int) -> NoReturn:
        """Raises that a rank of the group has come with another collective."""

    def failed(self, error: Exception) -> NoReturn:
        """Raises what has gone wrong, after the transport has failed."""


class GroupTransport(Protocol):
    """The way between the ranks of one group. `fingerprint` says what is exchanged: ranks that come with different ones
    exchange nothing. `number` counts the collectives of the group from 0 on.
    """

    name: str

    in_background: bool
    """Whether what was begun goes on while the program does something else."""

    arrival_ns: int | None
    """When the last of the other ranks came to the exchange that ended last, by the monotonic clock; None where that is
    not known, or where nobody records it.
    """

    sent_bytes: int
    """What this rank sent over the network in the exchange that ended last."""

    def all_reduce(self, x: torch.Tensor, op: Reduction, number: int, fingerprint: int) -> Exchange:
        """See `Communicator`."""

    def addressed_sum(self, dtype: torch.dtype, op: Reduction, count: int, own: range) -> AddressedExchange | None:
        """What reduces some elements of operands of so many, without tensors; None where this transport needs them."""

    def addressed_gather(self, nbytes: int) -> AddressedExchange | None:
        """What puts operands of so many bytes each one behind the other, without tensors."""

    def reduce_scatter(
        self, x: torch.Tensor, op: Reduction, parts: Sequence[TensorPart], number: int, fingerprint: int
    ) -> Exchange:
        """The own part of what all operands are reduced to; `parts` says which part each rank has."""

    def move(self, x: torch.Tensor, move: Movement, number: int, fingerprint: int) -> Exchange:
        """Pieces of operands, put together."""

    def algorithm(self, nbytes: int) -> str:
        """How an all-reduce of so many bytes goes, in the words of records."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that this transport reads without copying it first."""


def slices(count: int, size: int) -> list[TensorPart]:
    """`count` elements shared out to ranks, in order: as even as can be, in whole cache lines where there are many."""
    each = -(-count // size)
    if each > 1024:
        each = -(-each // 64) * 64
    starts = [min(rank * each, count) for rank in range(size + 1)]
    return [TensorPart(0, starts[rank], starts[rank + 1] - starts[rank]) for rank in range(size)]
