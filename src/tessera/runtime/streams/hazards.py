"""Order between streams: which earlier work a piece of work has to wait for, and which it races with.

Two operations conflict where they touch one byte and one of them writes it: read after write, write after read, write
after write. For an operation of an ordinary stream the tracker finds the conflicts with unfinished work and makes it
wait. For one of a *manual* stream it inserts nothing: there the program orders streams by events, and a conflict
with work that does not certainly come before is an error, whether or not that work happens to be done by then.

"Certainly before" is the happens-before relation, kept with vector clocks (Mattern, "Virtual Time and Global States of
Distributed Systems", 1989): operations of one stream are ordered; what an event was recorded after is before what waits
for it; and what the program has waited for is before all that it enqueues later.

All state is bounded: an operation that is done is forgotten, at the latest after `SWEEP_AFTER` more accesses. While
there are manual streams, done work is kept, to be compared with, as long as its memory lives and the program has not
waited for it, but no more than `MOST_KEPT` segments of memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tessera.errors import StreamRaceError
from tessera.lazy import policy
from tessera.lazy.devices import is_cpu_memory
from tessera.lazy.leaves import writes as writes_of_programs
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.promise import Promise
from tessera.runtime.streams.operations import Access, Clock, Operation, StreamState
from tessera.runtime.streams.spans import SpanMap

SWEEP_AFTER: Final = 256
MOST_KEPT: Final = 4096


class HazardTracker:
    """The order of the operations of all streams of a process. `lock` is held while one is ordered and enqueued."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.manual: weakref.WeakSet[object] = weakref.WeakSet()
        """Streams, by their handles, whose work is checked for races."""
        self.unfinished: dict[Operation, None] = {}
        self._spans = SpanMap()
        self._host_clock: Clock = {}
        self._added = 0
        self._detour_lock = threading.Lock()
        self._detour = False
        self._writing: dict[Operation, list[Access]] = {}
        """Operations that write to memory of users, unfinished or failed: evaluations look before they read."""

    # -- enqueueing; the lock is held -----------------------------------------------------------------------------

    def order(self, operation: Operation, reads: Sequence[Leaf], writes: Sequence[Leaf]) -> None:
        """Puts an operation after what it conflicts with, and remembers what it touches.

        Raises StreamRaceError (E_STREAM_RACE), with nothing changed, where its stream is manual and the order is open.
        """
        stream = operation.stream
        if not self.unfinished:
            writes_of_programs.forget()
        self._join(stream, self._host_clock)
        # What owns the memory matters only for work that is kept although it is done.
        keeps = bool(self.manual)
        accesses = [
            (Access(operation, leaf, with_root=keeps), False) for leaf in reads if leaf.structure.kind == "buffer"
        ]
        accesses += [(Access(operation, leaf), True) for leaf in writes]
        after = dict.fromkeys(operation.after)
        needs = dict.fromkeys(operation.needs)
        for leaf in reads:
            if type(leaf.owner) is Promise and not leaf.owner.is_kept and isinstance(leaf.owner.work, Operation):
                needs[leaf.owner.work] = None
        for access, is_write in accesses:
            for earlier, wrote in self._spans.conflicts(access, is_write):
                self._follow(earlier, access, wrote and not is_write, after, needs)
        for earlier_operation in after:
            self._join(stream, earlier_operation.clock)
            self._join(stream, {earlier_operation.stream.number: earlier_operation.index})
        operation.needs = list(needs)
        if not stream.is_manual:  # there all of them come before by what the program wrote
            after |= needs
        operation.after = [each for each in after if each.stream is not stream and not each.poll()]
        for access, is_write in accesses:
            self._spans.add(access, is_write)
        self._sweep(len(accesses))

    def _follow(
        self,
        earlier: Access,
        access: Access,
        is_needed: bool,
        after: dict[Operation, None],
        needs: dict[Operation, None],
    ) -> None:
        """Puts the operation of `access` after the one of `earlier`, or raises where it has to be so already."""
        first, stream = earlier.operation, access.operation.stream
        if self._is_over(earlier):
            return
        if not stream.is_manual:
            after[first] = None
        elif not self._is_before(first, stream):
            raise _race(earlier, access)
        if is_needed:
            needs[first] = None

    def register(self, operation: Operation, writes: Sequence[Leaf]) -> None:
        """Counts an operation among the unfinished ones, just before it is enqueued; `writes` is memory of users."""
        operation.observer = self
        self.unfinished[operation] = None
        if writes:
            with self._detour_lock:
                self._writing[operation] = [Access(operation, leaf) for leaf in writes]
                self._take_detour(True)

    def add_manual(self, handle: object) -> None:
        """Keeps what is needed to check for races, as long as the handle of a manual stream lives."""
        with self._detour_lock:
            self.manual.add(handle)
            self._take_detour(True)

    def come_after(self, stream: StreamState, earlier: Operation) -> None:
        """Notes that what a stream does from now on comes after an operation, as an event says."""
        self._join(stream, earlier.clock)
        self._join(stream, {earlier.stream.number: earlier.index})

    @staticmethod
    def _is_before(earlier: Operation, stream: StreamState) -> bool:
        return earlier.stream is stream or stream.clock.get(earlier.stream.number, 0) >= earlier.index

    @staticmethod
    def _join(stream: StreamState, clock: Clock) -> None:
        stream.clock = joined(stream.clock, clock)

    # -- finishing, on any thread -----------------------------------------------------------------------------------

    def finished(self, operation: Operation) -> None:
        """Notes that an operation is done."""
        self.unfinished.pop(operation, None)
        if operation.failure is None:
            self._settled(operation)

    def _settled(self, operation: Operation) -> None:
        if operation in self._writing:
            with self._detour_lock:
                self._writing.pop(operation, None)
            self._choose_way()

    def _choose_way(self) -> None:
        """Lets evaluations take the short way where nothing writes what they may read, and nobody asks what they waited
        for, which decides about races.
        """
        with self._detour_lock:
            for operation, accesses in list(self._writing.items()):
                if operation.done and all(access.memory_is_gone for access in accesses):
                    del self._writing[operation]  # it failed, and nobody can read what it should have written
            self._take_detour(bool(self._writing or self.manual))

    def _take_detour(self, wanted: bool) -> None:
        self._detour = wanted
        policy.take_detour(wanted)

    def reported(self, operations: Iterable[Operation]) -> None:
        """The program knows of these failures: later work does not inherit them through memory of users any more."""
        with self.lock:
            failed = set(operations)
            self._spans.forget(lambda access: access.operation in failed)
            for operation in failed:
                self._settled(operation)

    # -- the program itself -------------------------------------------------------------------------------------------

    def settle(self, reads: Sequence[Leaf], writes: Sequence[Leaf]) -> None:
        """Waits until the program itself may read and write memory; raises what should have written what it reads."""
        if self._detour and not self.manual:
            self._choose_way()
        if not self._detour and not self.unfinished:
            return
        for operation, conflict in self._conflicts_of_program(reads, writes).items():
            if conflict.on_cpu:
                operation.wait()
            else:
                operation.precede_program()
            self.awaited(operation)
            if conflict.is_needed and operation.failure is not None:
                raise operation.failure.error()

    def _conflicts_of_program(self, reads: Sequence[Leaf], writes: Sequence[Leaf]) -> dict[Operation, _Conflict]:
        nobody = Operation(_PROGRAM, "the program", None, None)
        found: dict[Operation, _Conflict] = {}
        with self.lock:
            for leaves, is_write in ((reads, False), (writes, True)):
                for leaf in leaves:
                    if leaf.structure.kind != "buffer":
                        continue
                    for earlier, wrote in self._spans.conflicts(Access(nobody, leaf), is_write):
                        operation = earlier.operation
                        if not self._is_over(earlier):
                            known = found.get(operation, _Conflict())
                            is_needed = known.is_needed or (wrote and not is_write)
                            found[operation] = _Conflict(is_needed, known.on_cpu or is_cpu_memory(leaf.device))
        return found

    def awaited(self, operation: Operation) -> None:
        """The program has waited for an operation: all that it enqueues from now on comes after it."""
        if operation.index <= self._host_clock.get(operation.stream.number, 0):
            return
        with self.lock:
            self._host_clock = joined(
                joined(self._host_clock, operation.clock), {operation.stream.number: operation.index}
            )

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def _sweep(self, added: int) -> None:
        self._added += added
        if self._added >= SWEEP_AFTER + len(self._spans):
            self._added = 0
            for operation in list(self.unfinished):
                operation.poll()  # devices do not tell by themselves
            self._spans.forget(self._is_over)
            if len(self._spans) > MOST_KEPT:
                self._spans.forget(lambda access: access.operation.poll() and access.operation.failure is None)

    def _is_over(self, access: Access) -> bool:
        """Whether nothing that is enqueued from now on can conflict with an access."""
        operation = access.operation
        if not operation.poll():
            return False
        if operation in self._writing:
            return access.memory_is_gone
        if not self.manual or access.memory_is_gone:
            return True
        return self._host_clock.get(operation.stream.number, 0) >= operation.index

    @property
    def segments(self) -> int:
        """Ranges of memory that it keeps account of."""
        return len(self._spans)

    def after_fork(self) -> list[Operation]:
        """In a child: forgets everything; gives what was unfinished, which nobody will do."""
        self.lock = threading.Lock()
        lost = list(self.unfinished)
        self._detour_lock = threading.Lock()
        self.unfinished, self._writing, self._spans = {}, {}, SpanMap()
        self._choose_way()
        return lost


class _Conflict(NamedTuple):
    """What the program shares with an operation: whether it reads its result, and whether in memory of the CPU."""

    is_needed: bool = False
    on_cpu: bool = False


class _Program:
    """The threads that enqueue, seen as a stream."""

    number = 0
    name = "the program"
    is_manual = False

    def __init__(self) -> None:
        self.clock: Clock = {}
        self.failures: list[Operation] = []


_PROGRAM: Final = _Program()


def joined(first: Clock, second: Clock) -> Clock:
    """The least clock after both; one of the two where it is. Clocks are shared, and never changed."""
    if first is second:
        return first
    newer = {number: index for number, index in second.items() if first.get(number, 0) < index}
    return first | newer if newer else first


def _race(earlier: Access, access: Access) -> StreamRaceError:
    first, second = earlier.operation, access.operation
    low, high = max(earlier.low, access.low), min(earlier.high, access.high)
    place = f", enqueued at {first.place}," if first.place else ""
    return StreamRaceError(
        f"{second.name} on stream {second.stream.name!r} and {first.name} on stream {first.stream.name!r}{place} touch "
        f"the same memory, one of them writes it, and nothing orders the two: bytes {low:#x} to {high:#x} of "
        f"{access.what.dtype}{list(access.what.shape)}",
        hints=[
            f"ev.record({first.stream.name}) after {first.name}, ev.wait({second.stream.name}) before {second.name}",
            'or make the stream with sync="auto", which inserts such waits',
        ],
    )
