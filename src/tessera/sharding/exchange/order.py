"""The one order of a program's collectives.

Every rank has to issue the same ones in the same order. A rank's streams run beside each other, so whatever holds a
collective comes after the last that does, whichever stream that is on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tessera.runtime.streams.operations import Operation
from tessera.system import forks

_thread: Final = threading.local()


@contextmanager
def reading() -> Iterator[None]:
    """This thread waits for collectives that the program began in its order: whichever thread that is, and whoever
    begins others meanwhile.
    """
    before = is_reading()
    _thread.reads = True
    try:
        yield
    finally:
        _thread.reads = before


def is_reading() -> bool:
    """Whether this thread is in a block of `reading`."""
    found: bool = getattr(_thread, "reads", False)
    return found


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
