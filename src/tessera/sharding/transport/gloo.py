"""The transport between hosts: torch.distributed's point-to-point messages over Gloo, and algorithms of our own.

Gloo's own reduce-scatter, all-gather and sums of 16-bit floats are slow or wrong, and mismatched calls kill the process
or mix data. Messages carry a fingerprint as their tag instead: what does not match never arrives, and the wait is ended
by whoever watches. Nobody but the transport's own thread blocks inside Gloo, since nothing wakes a thread there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.distributed as dist

from tessera.sharding.exchange.communicator import Reduction
from tessera.sharding.transport.contract import Exchange, Movement, Receipt, TensorPart, Waiting, slices
from tessera.sharding.transport.reducing import reduce_into

_STEP_S: Final = 0.05
_ONE_STEP_BYTES: Final = 1 << 14
"""Up to this size every rank sends its whole operand to all: one message's latency instead of two."""
_DIRECT_RANKS: Final = 16
"""Up to this many ranks everyone sends to everyone; among more, wholes go round in a ring."""

_Piece = tuple[int, torch.Tensor]
_under_way: Final[set[_Task]] = set()


def is_busy() -> bool:
    """Whether a communication thread of this process is in Gloo: after a fault it may be there for ever."""
    return bool(_under_way)


class _Task:
    """What the communication thread does for one exchange."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self.done = threading.Event()
        self.sent_bytes = 0
        self.error: Exception | None = None

    def __call__(self) -> None:
        try:
            self._run()
        except (RuntimeError, ValueError) as error:  # all that torch.distributed raises
            self.error = error
        _under_way.discard(self)
        self.done.set()


class GlooTransport:
    """Messages between the ranks of a group, of which this process is `rank`: `ranks` are their numbers in the process
    group `group`. `salt` keeps the messages of several groups apart, `empty` gives memory.
    """

    name = "gloo"
    in_background = True
    arrival_ns: int | None = None

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        group: dist.ProcessGroup | None,
        salt: int,
        empty: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
        waiting: Waiting,
    ) -> None:
        self._rank, self._size, self._ranks = rank, len(ranks), ranks
        self._group, self._salt, self._waiting, self._empty = group, salt, waiting, empty
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: _Task | None = None
        self.sent_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `GroupTransport`: any memory; much of it where pages are kept, which cost as much as a message."""
        return self._empty(shape, dtype)

    def algorithm(self, nbytes: int) -> str:
        """See `GroupTransport`."""
        return f"{self.name}, {'one-shot' if nbytes <= _ONE_STEP_BYTES else 'two-phase'}"

    def wake(self) -> None:
        """Nothing: those who wait look often enough."""

    def all_reduce(self, x: torch.Tensor, op: Reduction, number: int, fingerprint: int) -> Exchange:
        """See `GroupTransport`: in one step where it is small, else as a reduce-scatter and an all-gather."""
        if x.nbytes <= _ONE_STEP_BYTES:
            return self.reduce_scatter(x, op, [TensorPart()] * self._size, number, fingerprint)
        return self._two_phases(x, op, number, fingerprint)

    def addressed_sum(self, dtype: torch.dtype, op: Reduction, count: int, own: range) -> None:
        """See `GroupTransport`."""

    def addressed_gather(self, nbytes: int) -> None:
        """See `GroupTransport`."""

    def reduce_scatter(
        self, x: torch.Tensor, op: Reduction, parts: Sequence[TensorPart], number: int, fingerprint: int
    ) -> Exchange:
        """See `GroupTransport`."""
        result = self.empty(parts[self._rank].shape(x.shape), x.dtype)
        tag = self._tag(number, fingerprint)
        task = self._start(lambda: self._reduce_scatter(x, op, parts, result, tag))
        yield
        self._finish(task)
        return result

    def move(self, x: torch.Tensor, move: Movement, number: int, fingerprint: int) -> Exchange:
        """See `GroupTransport`."""
        result = self.empty(move.shape, x.dtype)
        tag = self._tag(number, fingerprint)
        goes_round = self._size > _DIRECT_RANKS and all(send == TensorPart() for send in move.sends)
        way = self._ring if goes_round and None not in move.receipts else self._direct
        task = self._start(lambda: way(x, move, result, tag))
        yield
        self._finish(task)
        return result

    def _two_phases(self, x: torch.Tensor, op: Reduction, number: int, fingerprint: int) -> Exchange:
        result = self.empty(tuple(x.shape), x.dtype)
        flat, parts, tag = result.view(-1), slices(x.numel(), self._size), self._tag(number, fingerprint)

        def run() -> None:
            own = parts[self._rank].of(flat)
            self._reduce_scatter(x.view(-1), op, parts, own, tag)
            peers = self._peers()
            self._exchange([(peer, own) for peer in peers], [(peer, parts[peer].of(flat)) for peer in peers], tag)

        task = self._start(run)
        yield
        self._finish(task)
        return result

    def _reduce_scatter(
        self, x: torch.Tensor, op: Reduction, parts: Sequence[TensorPart], result: torch.Tensor, tag: int
    ) -> None:
        shape = tuple(result.shape)
        pieces = [parts[peer].of(x) if peer == self._rank else self.empty(shape, x.dtype) for peer in range(self._size)]
        peers = self._peers()
        sends = [(peer, parts[peer].of(x).contiguous()) for peer in peers]
        self._exchange(sends, [(peer, pieces[peer]) for peer in peers], tag)
        reduce_into(result, pieces, op)

    def _direct(self, x: torch.Tensor, move: Movement, result: torch.Tensor, tag: int) -> None:
        """Every piece from its rank to where it belongs."""
        received: list[tuple[torch.Tensor, Receipt]] = []
        sends: list[_Piece] = []
        receives: list[_Piece] = []
        for peer in self._peers():
            send, receipt = move.sends[peer], move.receipts[peer]
            if send is not None:
                sends.append((peer, send.of(x).contiguous()))
            if receipt is not None:
                place = receipt.target.of(result)
                piece = place if place.is_contiguous() else torch.empty(place.shape, dtype=x.dtype, device="cpu")
                receives.append((peer, piece))
                received.append((piece, receipt))
        own = move.receipts[self._rank]
        if own is not None:
            own.target.of(result).copy_(own.source.of(x))
        self._exchange(sends, receives, tag)
        for piece, receipt in received:
            place = receipt.target.of(result)
            if place.data_ptr() != piece.data_ptr():
                place.copy_(piece)

    def _ring(self, x: torch.Tensor, move: Movement, result: torch.Tensor, tag: int) -> None:
        """Whole operands from neighbour to neighbour: at every step each rank passes on what it got last."""
        after, before = (self._rank + 1) % self._size, (self._rank - 1) % self._size
        passing = x
        for step in range(self._size):
            receipt = move.receipts[(self._rank - step) % self._size]
            assert receipt is not None, "a ring brings everything to everyone"
            receipt.target.of(result).copy_(passing)
            coming = move.receipts[(self._rank - step - 1) % self._size]
            if step < self._size - 1 and coming is not None:
                piece = torch.empty(coming.shape, dtype=x.dtype, device="cpu")
                self._exchange([(after, passing)], [(before, piece)], tag)
                passing = piece

    def _exchange(self, sends: Sequence[_Piece], receives: Sequence[_Piece], tag: int) -> None:
        """Sends and receives contiguous pieces; receives are posted first. Everything travels as bytes."""
        works = [
            dist.irecv(_bytes(piece), src=self._ranks[peer], group=self._group, tag=tag)
            for peer, piece in receives
            if piece.numel()
        ]
        works += [
            dist.isend(_bytes(piece), dst=self._ranks[peer], group=self._group, tag=tag)
            for peer, piece in sends
            if piece.numel()
        ]
        assert self._running is not None, "the communication thread exchanges for a task"
        self._running.sent_bytes += sum([piece.nbytes for _, piece in sends])
        for work in works:
            if work is not None:
                work.wait()

    def _peers(self) -> list[int]:
        """The other ranks, in the order of a ring from this one on."""
        return [(self._rank + step) % self._size for step in range(1, self._size)]

    def _tag(self, number: int, fingerprint: int) -> int:
        """31 bits that say which collective of which group a message belongs to."""
        mixed = (fingerprint ^ self._salt) + number * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        return (mixed ^ mixed >> 31) & 0x7FFFFFFF

    def _start(self, run: Callable[[], None]) -> _Task:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tessera-gloo", daemon=True)
            self._thread.start()
        task = _Task(run)
        _under_way.add(task)
        self._tasks.put(task)
        return task

    def _work(self) -> None:
        while True:
            self._running = self._tasks.get()
            self._running()

    def _finish(self, task: _Task) -> None:
        while not task.done.wait(_STEP_S):
            self._waiting.again([peer for peer in range(self._size) if peer != self._rank])
        self.sent_bytes = task.sent_bytes
        if task.error is not None:
            self._waiting.failed(task.error)


def _bytes(piece: torch.Tensor) -> torch.Tensor:
    return piece.reshape(-1).view(torch.uint8)
