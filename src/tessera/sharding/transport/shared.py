"""The transport between ranks of one host: each publishes where its operand lies, and reads those of the others.

Small operands go through the slots of lanes, large ones lie in heaps: those that were allocated there are read where
they are, others are copied there first. Nobody moves data in the background: what starts early is hidden waiting, not
hidden copying.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import torch

from tessera.profiling.recording import instrumentation
from tessera.sharding.exchange.communicator import ExchangeMemory, Reduction
from tessera.sharding.transport import native as words
from tessera.sharding.transport.contract import AddressedExchange, Exchange, Movement, TensorPart, Waiting, slices
from tessera.sharding.transport.lanes import DEPTH, SLOT_BYTES, Lane
from tessera.sharding.transport.native import ONE_SHOT_WORDS, WaitOutcome, native
from tessera.sharding.transport.reducing import reduce_into

_SPIN_NS: Final = 20_000
_LIMIT_NS: Final = 50_000_000
_IN_SLOT: Final = -1


class PeerMemory(Protocol):
    """The heap of a rank, as others see it."""

    address: int


class OwnMemory(PeerMemory, Protocol):
    """This rank's heap."""

    def offset(self, x: torch.Tensor) -> int | None:
        """Where a tensor begins in it; None where it lies elsewhere."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in it."""

    def empty_or_small(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in it, or elsewhere if it is so little that it is copied in any case."""


class _Published(NamedTuple):
    """An exchange under way: its number, and whether its operand is memory of the caller, who may write to it next."""

    number: int
    is_callers: bool


class _TensorMemory(NamedTuple):
    """The memory of a tensor."""

    address: int
    tensor: torch.Tensor


class _Small(NamedTuple):
    """A small exchange: the address of what puts operands of so many bytes together, from which byte of them, and how
    many elements.
    """

    function: int
    nbytes: int
    offset: int
    elements: int


class SharedTransport:
    """The shared memory of a group, of which this process is `rank`. `lanes` and `heaps` are those of all ranks; they
    `spin` before they sleep where each has a core.
    """

    name = "shared"
    in_background = False
    sent_bytes = 0

    def __init__(
        self,
        rank: int,
        lanes: Sequence[Lane],
        heaps: Sequence[PeerMemory],
        own: OwnMemory,
        waiting: Waiting,
        *,
        spins: bool,
    ) -> None:
        self._rank, self._size = rank, len(lanes)
        self._lanes, self._heaps, self._heap, self._waiting = lanes, heaps, own, waiting
        self._native = native()
        self._next = DEPTH
        self._spin_ns = _SPIN_NS if spins else 0
        self._copies: list[tuple[int, torch.Tensor]] = []
        self._lane_addresses = (ctypes.c_void_p * self._size)(*[lane.address for lane in lanes])
        self._parts = (ctypes.c_void_p * self._size)()
        self._small: dict[_Small, AddressedExchange] = {}
        self.arrival_ns: int | None = None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `GroupTransport`: memory of the heap, unless it is so little that it is copied in any case."""
        return self._heap.empty_or_small(shape, dtype)

    def algorithm(self, nbytes: int) -> str:
        """See `GroupTransport`."""
        return f"{self.name}, {'one-shot' if nbytes <= SLOT_BYTES else 'two-phase'}"

    def wake(self) -> None:
        """Has those look again that wait in this process, from another thread."""
        for lane in self._lanes:
            self._native.ring(lane.address)

    def all_reduce(self, x: torch.Tensor, op: Reduction, number: int, fingerprint: int) -> Exchange:
        """See `GroupTransport`: small ones in one step, in which every rank reduces all, others in two, in which each
        reduces a part and reads the others'.
        """
        sum_at = self.addressed_sum(x.dtype, op, x.numel(), range(x.numel()))
        if sum_at is not None:
            return self._one_shot(x, sum_at, fingerprint)
        if x.nbytes <= SLOT_BYTES:
            return self.reduce_scatter(x, op, [TensorPart()] * self._size, number, fingerprint)
        return self._two_phases(x, op, fingerprint)

    def addressed_sum(self, dtype: torch.dtype, op: Reduction, count: int, own: range) -> AddressedExchange | None:
        """See `GroupTransport`: small operands that native code reduces."""
        reduce = self._native.reduction(dtype, op)
        size = dtype.itemsize
        return self._addressed(_Small(reduce, count * size, own.start * size, len(own))) if reduce and own else None

    def addressed_gather(self, nbytes: int) -> AddressedExchange | None:
        """See `GroupTransport`: small ones."""
        return self._addressed(_Small(self._native.gather, nbytes, 0, nbytes))

    def _addressed(self, small: _Small) -> AddressedExchange | None:
        known = self._small.get(small)
        if known is None and 0 < small.nbytes <= SLOT_BYTES:
            known = self._small[small] = partial(self._exchange_at, self._call(small))
        return known

    def reduce_scatter(
        self, x: torch.Tensor, op: Reduction, parts: Sequence[TensorPart], number: int, fingerprint: int
    ) -> Exchange:
        """See `GroupTransport`."""
        published = self._publish(self._numbered(), x, fingerprint)
        yield
        part = parts[self._rank]
        result = self.empty(part.shape(x.shape), x.dtype)
        self._meet(published, fingerprint)
        self._see_arrivals(published.number)
        self._reduce(published.number, x, part, op, result)
        self._end(published)
        return result

    def move(self, x: torch.Tensor, move: Movement, number: int, fingerprint: int) -> Exchange:
        """See `GroupTransport`."""
        published = self._publish(self._numbered(), x, fingerprint)
        if move.keeps and published.is_callers:
            self._copies.append((published.number, x))
            published = published._replace(is_callers=False)
        yield
        result = self.empty(move.shape, x.dtype)
        self._meet(published, fingerprint)
        self._see_arrivals(published.number)
        for step in range(self._size):  # beginning with the own one, so that not all read one rank's at once
            peer = (self._rank + step) % self._size
            receipt = move.receipts[peer]
            if receipt is not None and result.numel():
                operand = x if peer == self._rank else self._operand(peer, published.number, receipt.shape, x.dtype)
                receipt.target.of(result).copy_(receipt.source.of(operand))
        self._end(published)
        return result

    def _two_phases(self, x: torch.Tensor, op: Reduction, fingerprint: int) -> Exchange:
        first, second = self._numbered(), self._numbered()
        published = self._publish(first, x, fingerprint)
        yield
        result = self._heap.empty(tuple(x.shape), x.dtype)
        flat, parts = result.view(-1), slices(x.numel(), self._size)
        own = parts[self._rank]
        self._meet(published, fingerprint)
        self._see_arrivals(first)
        self._reduce(first, x.view(-1), own, op, own.of(flat))
        self._native.finish(self._lanes[self._rank].address, first)
        reduced = self._publish(second, result, fingerprint)
        self._meet(reduced, fingerprint)
        for step in range(1, self._size):
            peer = (self._rank + step) % self._size
            part = parts[peer]
            if part.length:
                part.of(flat).copy_(part.of(self._operand(peer, second, (x.numel(),), x.dtype)))
        self._end(reduced)
        return result

    def _one_shot(self, x: torch.Tensor, sum_at: AddressedExchange, fingerprint: int) -> Exchange:
        result = torch.empty_like(x)
        yield from sum_at(_TensorMemory(x.data_ptr(), x), _TensorMemory(result.data_ptr(), result), fingerprint)
        return result

    def _exchange_at(
        self, call: ctypes.Array[ctypes.c_int64], operand: ExchangeMemory, result: ExchangeMemory, fingerprint: int
    ) -> Generator[None, None, None]:
        number = self._numbered()
        yield
        # Filled in here, since exchanges of one kind share a call, and several of them may have been started.
        call[words.NUMBER] = number
        call[words.FINGERPRINT] = fingerprint
        call[words.OPERAND], call[words.RESULT] = operand.address, result.address
        call[words.STAGE] = call[words.PEER] = 0
        address = ctypes.addressof(call)
        while (outcome := self._native.one_shot(address)) != WaitOutcome.MET:
            if outcome == WaitOutcome.MISMATCH:
                self._waiting.mismatch(call[words.PEER])
            self._waiting.again(self._missing(number) if call[words.STAGE] else [call[words.PEER]])
        self._see_arrivals(number)

    def _call(self, small: _Small) -> ctypes.Array[ctypes.c_int64]:
        """The one-shot call of what is exchanged, with all that stays the same."""
        return (ctypes.c_int64 * ONE_SHOT_WORDS)(
            ctypes.addressof(self._lane_addresses),
            ctypes.addressof(self._parts),
            self._size,
            self._rank,
            self._waiting.fault_address,
            self._spin_ns,
            _LIMIT_NS,
            *(0, 0),
            small.nbytes,
            small.elements,
            small.function,
            *(0, 0, 0, 0),
            small.offset,
        )

    def _numbered(self) -> int:
        self._next += 1
        return self._next - 1

    def _publish(self, number: int, x: torch.Tensor, fingerprint: int) -> _Published:
        """Announces an exchange whose operand is `x`, once nobody reads what lay in its place before."""
        for lane in self._lanes:
            self._await(lane.finished(number), number - DEPTH, lane, number)
        self._copies = [(of, copy) for of, copy in self._copies if not self._is_finished(of)]
        offset, is_callers = self._place(number, x)
        self._native.publish(self._lanes[self._rank].address, number, fingerprint, offset)
        return _Published(number, is_callers)

    def _place(self, number: int, x: torch.Tensor) -> tuple[int, bool]:
        """Where peers find `x`, and whether that is where it lies."""
        if x.nbytes <= SLOT_BYTES:
            if x.nbytes:
                ctypes.memmove(self._lanes[self._rank].slot(number), x.data_ptr(), x.nbytes)
            return _IN_SLOT, False
        offset = self._heap.offset(x)
        if offset is not None:
            return offset, True
        copy = self._heap.empty(tuple(x.shape), x.dtype).copy_(x)
        self._copies.append((number, copy))
        offset = self._heap.offset(copy)
        assert offset is not None, "what the heap gives lies in it"
        return offset, False

    def _meet(self, published: _Published, fingerprint: int) -> None:
        """Waits until all ranks have announced the exchange. Raises what the job does of a rank with another one."""
        number = published.number
        for peer, lane in enumerate(self._lanes):
            self._await(lane.record(number), number, lane, number)
            if lane.announced(number)[0] != fingerprint & (1 << 64) - 1:
                self._waiting.mismatch(peer)

    def _see_arrivals(self, number: int) -> None:
        """Notes for records when the last of the others came to an exchange; all stamp what they announce."""
        if instrumentation.recordings:
            others = [lane for rank, lane in enumerate(self._lanes) if rank != self._rank]
            self.arrival_ns = max([lane.announced(number)[2] for lane in others], default=0)

    def _end(self, published: _Published) -> None:
        """Reads no operand of the exchange any more; waits for the others if the caller may write to this rank's."""
        number = published.number
        self._native.finish(self._lanes[self._rank].address, number)
        if published.is_callers:
            for lane in self._lanes:
                self._await(lane.finished(number), number, lane, number)

    def _await(self, word: int, wanted: int, lane: Lane, number: int) -> None:
        fault = self._waiting.fault_address
        while self._native.wait(word, wanted, lane.address, fault, self._spin_ns, _LIMIT_NS) != WaitOutcome.MET:
            self._waiting.again(self._missing(number) or [self._lanes.index(lane)])

    def _missing(self, number: int) -> list[int]:
        return [peer for peer, lane in enumerate(self._lanes) if not lane.has_announced(number)]

    def _is_finished(self, number: int) -> bool:
        return all(lane.has_finished(number) for lane in self._lanes)

    def _operand(self, peer: int, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The operand of a rank, where it lies: to be read until this rank has finished the exchange."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        offset = self._lanes[peer].announced(number)[1]
        address = self._lanes[peer].slot(number) if offset == _IN_SLOT else self._heaps[peer].address + offset
        memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))

    def _reduce(self, number: int, x: torch.Tensor, part: TensorPart, op: Reduction, result: torch.Tensor) -> None:
        """The same part of all operands, reduced in rank order into `result`."""
        operands = [
            part.of(x if peer == self._rank else self._operand(peer, number, x.shape, x.dtype))
            for peer in range(self._size)
        ]
        reduce_into(result, operands, op)
