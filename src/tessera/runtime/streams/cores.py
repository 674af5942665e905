"""Sharing the cores between streams: kernels of several streams together use no more threads than plans are bound for.

Each worker thread of a stream has an OpenMP team of its own. Two teams of all cores each would run at once, and
their threads, which spin at barriers, would take each other's cores; one after the other they take as long together
and none is disturbed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tessera.lazy.threads import worker_count


class Cores:
    """Hands out threads, first come first served. A copy, which one thread makes, does not ask."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Nothing is handed out: in the beginning, and in a child after fork."""
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """Threads handed out now."""
        return self._in_use

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Waits until `count` threads, or all that there are, are free, and takes them."""
        wanted = min(count, worker_count())
        with self._turn, self._changed:
            while self._in_use and self._in_use + wanted > worker_count():
                self._changed.wait()
            self._in_use += wanted
        try:
            yield
        finally:
            with self._changed:
                self._in_use -= wanted
                self._changed.notify()
