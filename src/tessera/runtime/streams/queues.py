"""Where the operations of a stream go: a worker thread on the CPU, a CUDA stream on a GPU (`cuda_queue.py`)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Protocol

from tessera.errors import StreamError
from tessera.profiling.recording import tracks
from tessera.profiling.recording.tracks import Track
from tessera.runtime.streams.operations import HostOperation, Operation, StreamState


class Queue(Protocol):
    """The device-specific part of a stream."""

    def operation(self, stream: StreamState, name: str, place: str | None, run: Callable[[], None] | None) -> Operation:
        """A new operation for this queue."""

    def submit(self, operation: Operation) -> None:
        """Takes an operation, which waits for what it comes after. Called under the tracker's lock."""

    def entered(self) -> AbstractContextManager[Any]:
        """Makes memory taken inside the block the stream's own."""

    def close(self) -> None:
        """No more operations come: frees what the queue needs once it is empty. May run in a finalizer."""


class WorkerQueue:
    """The queue of a stream of the CPU, with its thread, which the first operation starts."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self._waiting: SimpleQueue[HostOperation | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def operation(
        self, stream: StreamState, name: str, place: str | None, run: Callable[[], None] | None
    ) -> HostOperation:
        """A new operation."""
        return HostOperation(stream, name, place, run)

    def submit(self, operation: Operation) -> None:
        """Hands an operation to the worker; when the process is ending, does it at once. Raises StreamError (E_STREAM)
        where no thread can be started.
        """
        assert isinstance(operation, HostOperation)
        if _ending:
            self.finish()
            operation.execute()
            return
        if self._thread is None:
            self._thread = self._started()
            _workers.add(self)
            _threads.add(self._thread)
        self._waiting.put(operation)

    def _started(self) -> threading.Thread:
        name = self._track.name
        thread = threading.Thread(target=_serve, args=(self._waiting, self._track), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StreamError(
                f"stream {name!r} has no thread: {error}", hints=["drop streams that are not needed"]
            ) from error
        return thread

    def entered(self) -> AbstractContextManager[Any]:
        """Memory of the CPU belongs to no stream."""
        return nullcontext()

    def close(self) -> None:
        """Ends the worker once it has done what is queued."""
        self._waiting.put(None)

    def finish(self) -> None:
        """Waits until the worker has done what is queued, and has ended."""
        self.close()
        if self._thread is not None:
            self._thread.join()

    def renew(self) -> None:
        """For a child after fork: the thread and what it had to do stayed in the parent."""
        self._waiting = SimpleQueue()
        self._thread = None


_workers: weakref.WeakSet[WorkerQueue] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Those of streams that the program has dropped too, as long as they run."""
_ending = False


def finish_all() -> None:
    """At the end of the process: what is queued is done, and the workers end. Later work is done where it is given.

    A thread that still frees tensors or waits for another rank while the interpreter ends would abort the process: it
    is unwound out of C++ that may not throw.
    """
    global _ending  # noqa: PLW0603 - the process ends once
    _ending = True
    for worker in list(_workers):
        worker.finish()
    for thread in list(_threads):
        thread.join()


def renew_all() -> None:
    """In a child after fork: all workers stayed in the parent."""
    for worker in list(_workers):
        worker.renew()
    _workers.clear()
    _threads.clear()


def _serve(waiting: SimpleQueue[HostOperation | None], track: Track) -> None:
    tracks.begin(track)
    while (operation := waiting.get()) is not None:
        operation.execute()
        del operation  # what it holds goes now, and not with the next one
    tracks.end()
