"""Communicators: what the ranks of a group exchange, and in which order sums are formed.

An implementation moves bytes between ranks; what the results are is said here once. `sharding/exchange/emulated.py`
computes them in one process, for the tensors of all ranks at once, and every other implementation gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import torch

from tessera.errors import ArgumentError
from tessera.ir.anchors import anchor
from tessera.lazy.layouts import Shape

Reduction: TypeAlias = Literal["sum", "avg", "min", "max", "product"]
"""What elements of several ranks are reduced by."""

REDUCTIONS: Final[tuple[Reduction, ...]] = get_args(Reduction)

COMBINING: Final[Mapping[anchor.Reduction, Reduction]] = {
    anchor.ADD: "sum",
    anchor.MUL: "product",
    "min": "min",
    "max": "max",
}
"""What combines the parts of a result whose parts are reduced, by the reduction of an anchor's axis."""

OUTSTANDING: Final = 6
"""Collectives of a group that may have been started and not waited for; a further one ends the first."""

Extents: TypeAlias = Sequence[int]
"""How many elements each rank of a group holds along a dimension, by rank; they may differ, and be 0."""


class Communicator(Protocol):
    """The ranks of a group as one of them sees it.

    Methods are collectives: every rank of the group calls the same ones in the same order. They take a contiguous
    tensor in CPU memory, return when the result is there, and give a fresh contiguous tensor.
    """

    @property
    def rank(self) -> int:
        """This rank's number within the group."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_reduce(self, x: torch.Tensor, op: Reduction) -> torch.Tensor:
        """The `combined` tensors of all ranks, which are of one shape: the same bits on each."""

    def all_gather(self, x: torch.Tensor, dim: int, extents: Extents) -> torch.Tensor:
        """The tensors of all ranks, one behind the other along `dim`, in rank order."""

    def reduce_scatter(self, x: torch.Tensor, dim: int, op: Reduction, extents: Extents) -> torch.Tensor:
        """This rank's part along `dim` of what `all_reduce` would give; `extents` add up to the tensor's extent."""

    def all_to_all(
        self, x: torch.Tensor, split: int, concat: int, split_extents: Extents, concat_extents: Extents
    ) -> torch.Tensor:
        """Every rank cuts its tensor along `split` into `split_extents`, and sends the piece of its number to each
        rank; pieces come together along `concat`, another dimension, in rank order. Rank i has `concat_extents[i]`
        elements there.
        """

    def permute(self, x: torch.Tensor, shift: int) -> torch.Tensor:
        """The tensor of the rank that is `shift` places before this one, the last being before the first; tensors are
        of one shape.
        """

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """The tensor of the rank `source`; those of the others say its shape and dtype."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""


class CollectiveFacts(NamedTuple):
    """What records say of a collective: when it began and ended, by the monotonic clock; a number that it has on all
    ranks; how many took part; how it went, by its bytes; what this rank sent over the network; and when the last rank
    came, where that is known.
    """

    start_ns: int
    end_ns: int
    identity: int
    size: int
    transport: str
    algorithm: Callable[[int], str]
    sent_bytes: int
    arrival_ns: int | None

    @property
    def wait_us(self) -> float | None:
        """How long this rank had to wait for the last one to come."""
        if self.arrival_ns is None:
            return None
        return min(max(self.arrival_ns - self.start_ns, 0), self.end_ns - self.start_ns) / 1e3

    def columns(self, nbytes: int, *, is_whole_sum: bool = True) -> dict[str, Any]:
        """The columns of a record of it, of an operand of so many bytes; all but all-reduces go in one step."""
        wait_us, taken_us = self.wait_us, (self.end_ns - self.start_ns) / 1e3
        return {
            "collective_algorithm": self.algorithm(nbytes) if is_whole_sum else f"{self.transport}, direct",
            "collective_group_size": self.size,
            "collective_transport": self.transport,
            "collective_wire_bytes": float(self.sent_bytes),
            "collective_wait_us": wait_us,
            "collective_transfer_us": None if wait_us is None else taken_us - wait_us,
        }


class CollectiveHandle(Protocol):
    """A collective that was begun. Its operand must not be written to before it was waited for."""

    @property
    def facts(self) -> CollectiveFacts | None:
        """What records say of it, once it has ended while somebody records."""

    def end(self) -> None:
        """Returns when the result is there."""

    def wait(self) -> torch.Tensor:
        """The result, when it is there."""


class ExchangeMemory(Protocol):
    """Contiguous memory, which is there as long as this is."""

    @property
    def address(self) -> int:
        """Of the first byte."""


AddressedStart: TypeAlias = Callable[[ExchangeMemory, ExchangeMemory], CollectiveHandle]
"""Begins a collective of an operand, which is not written to before it was waited for, and of where its result goes."""


class StartingCommunicator(Communicator, Protocol):
    """A communicator that also begins collectives and ends them later, in the order in which they were begun."""

    @property
    def in_background(self) -> bool:
        """Whether what was begun goes on while the program does something else."""

    def start_all_reduce(self, x: torch.Tensor, op: Reduction) -> CollectiveHandle:
        """Begins `all_reduce`."""

    def start_all_gather(self, x: torch.Tensor, dim: int, extents: Extents) -> CollectiveHandle:
        """Begins `all_gather`."""

    def start_reduce_scatter(self, x: torch.Tensor, dim: int, op: Reduction, extents: Extents) -> CollectiveHandle:
        """Begins `reduce_scatter`."""

    def start_all_to_all(
        self, x: torch.Tensor, split: int, concat: int, split_extents: Extents, concat_extents: Extents
    ) -> CollectiveHandle:
        """Begins `all_to_all`."""

    def start_permute(self, x: torch.Tensor, shift: int) -> CollectiveHandle:
        """Begins `permute`."""

    def start_broadcast(self, x: torch.Tensor, source: int) -> CollectiveHandle:
        """Begins `broadcast`."""

    def addressed_all_reduce(self, shape: Shape, dtype: torch.dtype, op: Reduction) -> AddressedStart | None:
        """What begins `all_reduce` of operands of this shape without tensors, which cost more than small ones; None
        where only tensors are exchanged.
        """

    def addressed_reduce_scatter(
        self, shape: Shape, dtype: torch.dtype, dim: int, op: Reduction, extents: Extents
    ) -> AddressedStart | None:
        """As `addressed_all_reduce`, of `reduce_scatter`."""

    def addressed_all_gather(
        self, shape: Shape, dtype: torch.dtype, dim: int, extents: Extents
    ) -> AddressedStart | None:
        """As `addressed_all_reduce`, of `all_gather`."""


_FOLDS: Final[Mapping[Reduction, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "sum": torch.add,
    "avg": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


def combined(parts: Sequence[torch.Tensor], op: Reduction) -> torch.Tensor:
    """A fresh tensor: the tensors of all ranks reduced element by element, from the first rank to the last.

    16-bit and 8-bit floats are computed with in fp32 and rounded once. NaN of any rank gives NaN. Raises ArgumentError
    (E_ARGUMENT) for a reduction that there is not.
    """
    fold = _FOLDS.get(op)
    if fold is None:
        raise ArgumentError(f"a reduction {op!r}", hints=[f"one of {', '.join(REDUCTIONS)}"])
    dtype = parts[0].dtype
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total = fold(total, part.to(wide))
    if op == "avg":
        total = total / len(parts)
    return total.to(dtype).contiguous()
