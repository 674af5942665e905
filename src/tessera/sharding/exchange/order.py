"""The one order of a program's collectives.

Every rank has to issue the same ones in the same order. A rank's streams run beside each other, so whatever holds a
collective comes after the last that does, whichever stream that is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tessera.runtime.streams.operations import Operation
from tessera.system import forks


class CollectiveOrder:
    """The last piece of queued work that holds a collective."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._last: Operation | None = None

    def wait(self) -> None:
        """Returns when what is queued is done."""
        last = self._last
        if last is not None:
            last.wait()

    @contextmanager
    def now(self) -> Iterator[None]:
        """For collectives of this thread, once all that are queued are done."""
        with self._lock:
            self.wait()
            yield

    def enqueue(self, enqueue: Callable[[Sequence[Operation]], Operation]) -> None:
        """Has work enqueued that holds a collective, after the operations that are handed over."""
        with self._lock:
            self._last = enqueue([] if self._last is None else [self._last])


collective_order = CollectiveOrder()
"""That of this process."""
