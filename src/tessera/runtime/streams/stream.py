"""Streams and events, as CUDA has them, on every device.

A stream runs what it is given in order; streams run beside each other. On the CPU a stream is a worker thread, started
by the first piece of work, that ends when the stream is dropped and its queue is empty. Work cannot deadlock: an
operation waits only for ones enqueued before it. (A finalizer of the program could, which Python may run on a worker.)
"""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import torch

from tessera.errors import ArgumentError, StreamError, user_location
from tessera.lazy import promise
from tessera.lazy.devices import is_cpu_memory
from tessera.lazy.leaves.leaf import Leaf
from tessera.profiling.recording import instrumentation
from tessera.profiling.recording.tracks import Track
from tessera.profiling.session import enqueued
from tessera.runtime.streams import queues
from tessera.runtime.streams.cores import Cores
from tessera.runtime.streams.cuda_queue import CudaQueue
from tessera.runtime.streams.hazards import HazardTracker
from tessera.runtime.streams.operations import Clock, Failure, Operation
from tessera.runtime.streams.queues import Queue, WorkerQueue

Sync: TypeAlias = Literal["auto", "manual"]
SYNCS: Final[tuple[Sync, ...]] = get_args(Sync)

tracker: Final = HazardTracker()
cores: Final = Cores()
_numbers = itertools.count(1)


class StreamCore:
    """A stream without its handle: what operations, events and the worker refer to, so that dropping the handle shows
    that nothing more will come.
    """

    def __init__(self, name: str | None, device: str, sync: Sync) -> None:
        self.number = next(_numbers)
        self.name = f"stream {self.number}" if name is None else name
        self.device = device
        self.is_manual = sync == "manual"
        self.clock: Clock = {}
        self.failures: list[Operation] = []
        self.count = 0
        self.last: Operation | None = None
        on_cpu = is_cpu_memory(device)
        self.queue: Queue = WorkerQueue(Track(self.number, self.name)) if on_cpu else CudaQueue(device)

    def enqueue(
        self,
        name: str,
        run: Callable[[], None] | None,
        *,
        reads: Sequence[Leaf] = (),
        writes: Sequence[Leaf] = (),
        after: Sequence[Operation] = (),
        results: Callable[[Operation], Sequence[Leaf]] | None = None,
        place: str | None = None,
    ) -> Operation:
        """Puts `run` at the end of the stream, behind what it conflicts with, and `after`.

        `writes` is memory of users; `results` are leaves over new memory, whose owners become promises. Raises
        StreamRaceError (E_STREAM_RACE) on a manual stream.
        """
        operation = self.queue.operation(self, name, place or user_location(), run)
        operation.after = list(after)
        operation.issued = instrumentation.moment()
        made = results(operation) if results is not None else ()
        operation.touches = [leaf.owner for leaf in (*reads, *writes, *made)]
        with tracker.lock:
            operation.index = self.count + 1
            tracker.order(operation, reads, [*writes, *made])
            operation.clock = self.clock
            self.count = operation.index
            self.last = operation
            tracker.register(operation, writes)
            try:
                self.queue.submit(operation)
            except (
                BaseException
            ) as error:  # no thread could be started, or an interrupt: nobody may wait for the operation
                operation.finish(Failure.of(error, operation))
                raise
        return operation

    def raise_failures(self) -> None:
        """Raises the first failure that the program does not know of yet, if there is one; then it knows of all."""
        failed, self.failures = self.failures, []
        if failed:
            tracker.reported(failed)
            failure = failed[0].failure
            assert failure is not None
            raise failure.error()


def _wait_for_all() -> None:
    """Waits for what is enqueued on any stream now; raises nothing."""
    for operation in list(tracker.unfinished):
        operation.wait()
        tracker.awaited(operation)


enqueued.before_end(_wait_for_all)


class Stream:
    """Work in order, beside that of other streams. Made by `stream.create`."""

    def __init__(self, name: str | None = None, device: str = "cpu", sync: Sync = "auto") -> None:
        if sync not in SYNCS:
            raise ArgumentError(f"sync={sync!r}", hints=[f"one of {', '.join(SYNCS)}"])
        self.core = StreamCore(name, device, sync)
        if self.core.is_manual:
            tracker.add_manual(self)
        closing = weakref.finalize(self, self.core.queue.close)
        closing.atexit = False
        promise.set_guard(tracker.settle)

    @property
    def name(self) -> str:
        """The name, as timelines and errors show it."""
        return self.core.name

    @property
    def number(self) -> int:
        """The number in profile records, from 1 on; 0 there means work that the program does itself."""
        return self.core.number

    @property
    def device(self) -> str:
        """Where its work runs: "cpu" or "cuda:0"."""
        return self.core.device

    @property
    def torch(self) -> torch.cuda.Stream | None:
        """The stream of torch that this is on a CUDA device: `with torch.cuda.stream(s.torch):`. None on the CPU."""
        return self.core.queue.stream if isinstance(self.core.queue, CudaQueue) else None

    @property
    def sync(self) -> Sync:
        """ "auto": the runtime orders this stream's work after what it conflicts with. "manual": events do."""
        return "manual" if self.core.is_manual else "auto"

    def synchronize(self) -> None:
        """Waits until everything enqueued so far is done.

        Raises the first failure of the stream's work that no call has raised before.
        """
        last = self.core.last
        if last is not None:
            last.wait()
            tracker.awaited(last)
        self.core.raise_failures()

    def query(self) -> bool:
        """Whether everything enqueued so far is done. Never blocks."""
        return _is_done(self.core.last)

    def __repr__(self) -> str:
        return f"<stream {self.name!r} on {self.device}, {self.sync}>"


class Event:
    """A point in a stream: `record` sets it, `wait` makes another stream come after it. Made by `event.create`."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._point: Operation | None = None

    def record(self, stream: Stream) -> None:
        """The event is now the point after everything enqueued on `stream` so far. A later record replaces it, but not
        for those who wait already.
        """
        self._point = core_of(stream).enqueue(_label("event", self.name), None)

    def wait(self, stream: Stream) -> None:
        """All that is enqueued on `stream` from now on comes after the event, as it was last recorded. Returns at once.

        An event that was never recorded holds nobody up.
        """
        core, point = core_of(stream), self._point
        if point is None or point.stream is core:
            return
        if point.poll():
            with tracker.lock:
                tracker.come_after(core, point)
            return
        core.enqueue(_label("wait", self.name), None, after=[point])

    def synchronize(self) -> None:
        """Waits until the event has happened. Raises the first failure of its stream that no call has raised before."""
        point = self._point
        if point is not None:
            point.wait()
            tracker.awaited(point)
            core = point.stream
            if isinstance(core, StreamCore):
                core.raise_failures()

    def query(self) -> bool:
        """Whether the event has happened, or was never recorded. Never blocks."""
        return _is_done(self._point)

    def __repr__(self) -> str:
        state = "not recorded" if self._point is None else "happened" if self.query() else "to come"
        return f"<{_label('event', self.name)}, {state}>"


def _is_done(operation: Operation | None) -> bool:
    if operation is None:
        return True
    if not operation.poll():
        return False
    tracker.awaited(operation)
    return True


def _label(what: str, name: str | None) -> str:
    return what if name is None else f"{what} {name!r}"


def core_of(stream: Any) -> StreamCore:
    """The core of what a user gave as a stream. Raises ArgumentError (E_ARGUMENT) for anything else."""
    if not isinstance(stream, Stream):
        raise ArgumentError(f"a {type(stream).__name__} as a stream", hints=["stream.create() makes one"])
    return stream.core


def _after_fork() -> None:
    """In a child: what was queued is lost, and those who ask for it are told; streams can be used again."""
    queues.renew_all()
    cores.renew()
    for operation in [each for each in tracker.after_fork() if not each.done]:
        error = StreamError(
            f"{operation.name} was enqueued before this process forked, and is done in its parent only",
            hints=["synchronize streams before forking"],
            where=operation.place,
        )
        operation.finish(Failure(error, operation.name, operation.place))


def _hold() -> None:
    tracker.lock.acquire()


def _release() -> None:
    tracker.lock.release()


atexit.register(queues.finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_after_fork)
