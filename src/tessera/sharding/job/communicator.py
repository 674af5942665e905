"""The communicator of a group of ranks that are processes: every collective numbered, described and watched."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence

import torch

from tessera.errors import ArgumentError, CollectiveOrderError
from tessera.lazy.layouts import Shape
from tessera.profiling.recording import instrumentation
from tessera.sharding.exchange import order
from tessera.sharding.exchange.communicator import (
    OUTSTANDING,
    REDUCTIONS,
    AddressedStart,
    CollectiveFacts,
    Extents,
    Reduction,
)
from tessera.sharding.job.page import Seen
from tessera.sharding.job.patience import Patience
from tessera.sharding.job.watcher import Watcher
from tessera.sharding.transport import moves
from tessera.sharding.transport.contract import AddressedExchange, GroupTransport, Movement


class Handle:
    """A collective that was started. Its operand must not be written to before it was waited for."""

    __slots__ = ("_begun", "_communicator", "_exchange", "_result", "facts", "has_ended", "seen")

    def __init__(
        self, communicator: ProcessCommunicator, exchange: Generator[None, None, torch.Tensor | None], seen: Seen
    ) -> None:
        self._communicator, self._exchange, self.seen = communicator, exchange, seen
        self._result: torch.Tensor | None = None
        self.has_ended = False
        self.facts: CollectiveFacts | None = None
        self._begun = time.monotonic_ns() if instrumentation.recordings else 0
        next(exchange)

    def end(self) -> None:
        """Returns when the result is there. Collectives that were started before end first."""
        if not self.has_ended:
            self._communicator.end(self)

    def wait(self) -> torch.Tensor:
        """As `end`; gives the result."""
        self.end()
        assert self._result is not None, "what has ended has a result"
        return self._result

    def finish(self) -> None:
        """Ends the exchange; for the communicator, in the order of starts."""
        try:
            next(self._exchange)
        except StopIteration as end:
            self._result, self.has_ended = end.value, True
        if self._begun and instrumentation.recordings:
            self.facts = self._communicator.facts(self._begun, self.seen.number)


class _Kind:
    """A collective with all that ranks must agree on, which is worked out once."""

    __slots__ = ("description", "fingerprint", "index", "move")

    def __init__(self, description: str, index: int, move: Movement | None) -> None:
        self.description, self.index, self.move = description, index, move
        digest = hashlib.blake2b(description.encode(), digest_size=8).digest()
        self.fingerprint = int.from_bytes(digest, "little")


class ProcessCommunicator:
    """A `Communicator` of the processes `ranks` of a job, which also starts collectives and ends them later."""

    def __init__(
        self,
        ranks: Sequence[int],
        key: int,
        watcher: Watcher,
        patience: Patience,
        transport: Callable[[Patience], GroupTransport],
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank, self.size = self.ranks.index(watcher.rank), len(ranks)
        self._key, self._watcher, self._page, self._patience = key, watcher, watcher.page, patience
        self.transport = transport(patience)
        self._kinds: dict[object, _Kind] = {}
        self._number = 0
        self._under_way: deque[Handle] = deque()
        self._turn = threading.Lock()
        self._readers: set[int] = set()
        """The threads that wait for, or have, their turn to read what was begun before."""

    @property
    def in_background(self) -> bool:
        """See `StartingCommunicator`."""
        return self.transport.in_background

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an operand that the group's transport reads without copying it first."""
        return self.transport.empty(shape, dtype)

    def all_reduce(self, x: torch.Tensor, op: Reduction) -> torch.Tensor:
        """See `Communicator`."""
        return self.start_all_reduce(x, op).wait()

    def all_gather(self, x: torch.Tensor, dim: int, extents: Extents) -> torch.Tensor:
        """See `Communicator`."""
        return self.start_all_gather(x, dim, extents).wait()

    def reduce_scatter(self, x: torch.Tensor, dim: int, op: Reduction, extents: Extents) -> torch.Tensor:
        """See `Communicator`."""
        return self.start_reduce_scatter(x, dim, op, extents).wait()

    def all_to_all(
        self, x: torch.Tensor, split: int, concat: int, split_extents: Extents, concat_extents: Extents
    ) -> torch.Tensor:
        """See `Communicator`."""
        return self.start_all_to_all(x, split, concat, split_extents, concat_extents).wait()

    def permute(self, x: torch.Tensor, shift: int) -> torch.Tensor:
        """See `Communicator`."""
        return self.start_permute(x, shift).wait()

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """See `Communicator`."""
        return self.start_broadcast(x, source).wait()

    def barrier(self) -> None:
        """See `Communicator`."""
        kind = self._kinds.get("barrier") or self._kind("barrier", "barrier", moves.barrier(self.size))
        self._start_move(torch.empty(1, dtype=torch.uint8, device="cpu"), kind).wait()

    def start_all_reduce(self, x: torch.Tensor, op: Reduction) -> Handle:
        """Begins `all_reduce`."""
        x = _plain(x)
        kind = self._all_reduce(x.shape, x.dtype, op)
        return self._start(kind, lambda number: self.transport.all_reduce(x, op, number, kind.fingerprint))

    def start_all_gather(self, x: torch.Tensor, dim: int, extents: Extents) -> Handle:
        """Begins `all_gather`."""
        x = _plain(x)
        return self._start_move(x, self._all_gather(x.shape, x.dtype, dim, extents))

    def start_reduce_scatter(self, x: torch.Tensor, dim: int, op: Reduction, extents: Extents) -> Handle:
        """Begins `reduce_scatter`."""
        x = _plain(x)
        kind = self._reduce_scatter(x.shape, x.dtype, dim, op, extents)
        parts = moves.parts(dim % x.dim(), extents)
        return self._start(kind, lambda number: self.transport.reduce_scatter(x, op, parts, number, kind.fingerprint))

    def start_all_to_all(
        self, x: torch.Tensor, split: int, concat: int, split_extents: Extents, concat_extents: Extents
    ) -> Handle:
        """Begins `all_to_all`."""
        x = _plain(x)
        self._check(x.shape, split, split_extents, own=False)
        self._check(x.shape, concat, concat_extents, own=True)
        split, concat = split % x.dim(), concat % x.dim()
        if split == concat:
            raise ArgumentError(f"all_to_all splits and concatenates along {split}", hints=["take two dimensions"])
        key = ("all_to_all", split, concat, tuple(split_extents), tuple(concat_extents), x.shape, x.dtype)
        kind = self._kinds.get(key)
        if kind is None:
            move = moves.all_to_all(x.shape, self.rank, split, concat, split_extents, concat_extents)
            whole = [*x.shape]
            whole[concat] = sum(concat_extents)
            told = f"{split} by {_by(split_extents)} to {concat} by {_by(concat_extents)}"
            kind = self._kind(key, f"all_to_all of {_of(whole, x.dtype)} from {told}", move)
        return self._start_move(x, kind)

    def start_permute(self, x: torch.Tensor, shift: int) -> Handle:
        """Begins `permute`."""
        x = _plain(x)
        shift %= self.size
        key = ("permute", shift, x.shape, x.dtype)
        kind = self._kinds.get(key)
        if kind is None:
            move = moves.permute(x.shape, self.rank, self.size, shift)
            kind = self._kind(key, f"permute by {shift} of {_of(x.shape, x.dtype)}", move)
        return self._start_move(x, kind)

    def start_broadcast(self, x: torch.Tensor, source: int) -> Handle:
        """Begins `broadcast`."""
        x = _plain(x)
        if not 0 <= source < self.size:
            raise ArgumentError(f"broadcast from rank {source} of a group of {self.size}")
        key = ("broadcast", source, x.shape, x.dtype)
        kind = self._kinds.get(key)
        if kind is None:
            move = moves.broadcast(x.shape, self.rank, self.size, source)
            kind = self._kind(key, f"broadcast from {source} of {_of(x.shape, x.dtype)}", move)
        return self._start_move(x, kind)

    def addressed_all_reduce(self, shape: Shape, dtype: torch.dtype, op: Reduction) -> AddressedStart | None:
        """See `StartingCommunicator`."""
        count = math.prod(shape)
        exchange = self.transport.addressed_sum(dtype, op, count, range(count))
        return exchange and self._addressed(self._all_reduce(shape, dtype, op), exchange)

    def addressed_reduce_scatter(
        self, shape: Shape, dtype: torch.dtype, dim: int, op: Reduction, extents: Extents
    ) -> AddressedStart | None:
        """See `StartingCommunicator`: where parts are contiguous."""
        if math.prod(shape[:dim]) != 1:
            return None
        row, first = math.prod(shape[dim + 1 :]), sum(extents[: self.rank])
        own = range(row * first, row * (first + extents[self.rank]))
        exchange = self.transport.addressed_sum(dtype, op, math.prod(shape), own)
        return exchange and self._addressed(self._reduce_scatter(shape, dtype, dim, op, extents), exchange)

    def addressed_all_gather(
        self, shape: Shape, dtype: torch.dtype, dim: int, extents: Extents
    ) -> AddressedStart | None:
        """See `StartingCommunicator`: where parts are contiguous, and as large as each other."""
        if math.prod(shape[:dim]) != 1 or len(set(extents)) != 1:
            return None
        exchange = self.transport.addressed_gather(math.prod(shape) * dtype.itemsize)
        return exchange and self._addressed(self._all_gather(shape, dtype, dim, extents), exchange)

    def start_send(self, x: torch.Tensor, what: str) -> Handle:
        """Begins to hand a tensor, of which `what` says what it is, from the first of the group's two ranks, which is
        this one, to the second. Nobody writes to it any more. It has ended once the other has begun to receive.
        """
        return self._start_hand_on(_plain(x), tuple(x.shape), x.dtype, what, sends=True)

    def start_receive(self, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Handle:
        """Begins to receive what the first of the group's two ranks sends to the second, which is this one."""
        return self._start_hand_on(torch.empty(0, dtype=dtype, device="cpu"), shape, dtype, what, sends=False)

    def _start_hand_on(
        self, x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str, *, sends: bool
    ) -> Handle:
        if self.size != 2 or sends != (self.rank == 0):
            raise ArgumentError(
                f"rank {self.rank} of a group of {self.size} {'sends' if sends else 'receives'} a tensor",
                hints=["in a group of two ranks the first sends to the second"],
            )
        key = ("hand on", what, shape, dtype)
        kind = self._kinds.get(key)
        if kind is None:
            move = moves.handed_on(shape, self.rank)
            kind = self._kind(key, f"{what}, {_of(shape, dtype)}, from rank {self.ranks[0]} to {self.ranks[1]}", move)
        return self._start_move(x, kind)

    def end(self, handle: Handle) -> None:
        """Ends collectives that were started, in their order, up to this one."""
        reader = self._take_turn_to_end()
        try:
            while self._under_way and not handle.has_ended:
                self._finish(self._under_way.popleft())
        finally:
            self._turn.release()
            self._readers.discard(reader)

    def finish(self) -> None:
        """Ends all collectives that were started."""
        reader = self._take_turn_to_end()
        try:
            while self._under_way:
                self._finish(self._under_way.popleft())
        finally:
            self._turn.release()
            self._readers.discard(reader)

    def facts(self, begun_ns: int, number: int) -> CollectiveFacts:
        """What records say of the collective that has just ended."""
        transport = self.transport
        identity = (self._key + number * 0x9E3779B97F4A7C15) & (1 << 63) - 1
        return CollectiveFacts(
            begun_ns,
            time.monotonic_ns(),
            identity,
            self.size,
            transport.name,
            transport.algorithm,
            transport.sent_bytes,
            transport.arrival_ns,
        )

    def _addressed(self, kind: _Kind, exchange: AddressedExchange) -> AddressedStart:
        return lambda operand, result: self._start(kind, lambda _: exchange(operand, result, kind.fingerprint))

    def _start_move(self, x: torch.Tensor, kind: _Kind) -> Handle:
        move = kind.move
        assert move is not None, "a kind of movement says what moves"
        return self._start(kind, lambda number: self.transport.move(x, move, number, kind.fingerprint))

    def _start(self, kind: _Kind, exchange: Callable[[int], Generator[None, None, torch.Tensor | None]]) -> Handle:
        self._take_turn()
        try:
            self._watcher.check("")
            while len(self._under_way) >= OUTSTANDING:  # a lane has sixteen places, and a sum in two phases takes two
                self._finish(self._under_way.popleft())
            number, self._number = self._number, self._number + 1
            seen = Seen(number, kind.fingerprint, kind.description)
            self._patience.begin(seen)
            self._page.begin(self._key, number, kind.fingerprint, kind.index)
            handle = Handle(self, exchange(number), seen)
            self._patience.end()
            self._under_way.append(handle)
            return handle
        finally:
            self._turn.release()

    def _finish(self, handle: Handle) -> None:
        self._patience.begin(handle.seen)
        handle.finish()
        self._patience.end()
        self._page.finish(self._key, handle.seen.number)

    def _take_turn(self) -> None:
        if not self._turn.acquire(blocking=bool(self._readers)):
            raise CollectiveOrderError(
                f"another thread is in a collective of ranks {', '.join(map(str, self.ranks))}",
                hints=["one thread at a time calls the collectives of a group: their order must not be left to chance"],
            )

    def _take_turn_to_end(self) -> int:
        """Takes the turn to end collectives. Who reads what the program began before may be any thread: it waits for
        its turn, and is waited for, by its number, which is given.
        """
        if not order.is_reading():
            self._take_turn()
            return 0
        reader = threading.get_ident()
        self._readers.add(reader)
        self._turn.acquire()
        return reader

    def _all_reduce(self, shape: Shape, dtype: torch.dtype, op: Reduction) -> _Kind:
        key = ("all_reduce", op, shape, dtype)
        kind = self._kinds.get(key)
        if kind is None:
            _check_reduction(op)
            kind = self._kind(key, f"all_reduce {op} of {_of(shape, dtype)}")
        return kind

    def _all_gather(self, shape: Shape, dtype: torch.dtype, dim: int, extents: Extents) -> _Kind:
        key = ("all_gather", dim, tuple(extents), shape, dtype)
        kind = self._kinds.get(key)
        if kind is None:
            self._check(shape, dim, extents, own=True)
            move = moves.all_gather(shape, dim % len(shape), extents)
            told = f"all_gather of {_of(move.shape, dtype)} along {dim % len(shape)} by {_by(extents)}"
            kind = self._kind(key, told, move)
        return kind

    def _reduce_scatter(self, shape: Shape, dtype: torch.dtype, dim: int, op: Reduction, extents: Extents) -> _Kind:
        key = ("reduce_scatter", dim, op, tuple(extents), shape, dtype)
        kind = self._kinds.get(key)
        if kind is None:
            self._check(shape, dim, extents, own=False)
            _check_reduction(op)
            told = f"reduce_scatter {op} of {_of(shape, dtype)} along {dim % len(shape)} by {_by(extents)}"
            kind = self._kind(key, told)
        return kind

    def _kind(self, key: object, description: str, move: Movement | None = None) -> _Kind:
        made = self._kinds[key] = _Kind(description, self._page.describe(description), move)
        return made

    def _check(self, shape: Shape, dim: int, extents: Extents, *, own: bool) -> None:
        extent = shape[dim]
        wanted = extents[self.rank] if own and len(extents) == self.size else sum(extents)
        if len(extents) != self.size or wanted != extent:
            whose = f"rank {self.rank}'s" if own else "all"
            raise ArgumentError(
                f"extents {tuple(extents)} along dimension {dim} of a tensor of shape {tuple(shape)}, "
                f"among {self.size} ranks",
                hints=[f"one extent for each rank; {whose} extent is {wanted}, the tensor has {extent}"],
            )


def _check_reduction(op: Reduction) -> None:
    if op not in REDUCTIONS:
        raise ArgumentError(f"a reduction {op!r}", hints=[f"one of {', '.join(REDUCTIONS)}"])


def _of(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape)) or 'a scalar'} {str(dtype).removeprefix('torch.')}"


def _by(extents: Extents) -> str:
    return ",".join(map(str, extents))


def _plain(x: torch.Tensor) -> torch.Tensor:
    """The values alone, one behind the other."""
    return x if x.is_contiguous() and not x.requires_grad else x.detach().contiguous()
