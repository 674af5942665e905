"""The thread that empties the ring while sessions are on, so that only bursts are dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tessera.profiling.ring import recorder

INTERVAL_S: Final = 0.02
"""A ring of 65,536 records lasts so long at 3 million kernels a second."""

PERIOD_S: Final = 1.0
"""What runs slowly is taken up so often too."""


class Drain:
    """Calls `collect` when the ring has filled to an eighth, and once in a while."""

    def __init__(self, collect: Callable[[], None]) -> None:
        self._collect = collect
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stopping,), name="tessera-profile-drain", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, without waiting for it: it may be waiting for a lock of the caller's."""
        self._stopping.set()
        self._thread = None

    def _run(self, stopping: threading.Event) -> None:
        ring = recorder.ring()
        waited = 0.0
        while not stopping.wait(INTERVAL_S):
            waited += INTERVAL_S
            if ring.backlog >= ring.capacity // 8 or waited >= PERIOD_S:
                waited = 0.0
                self._collect()
