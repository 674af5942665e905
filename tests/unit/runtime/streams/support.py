"""Streams that stand still until a test lets them go on, so that what is tested does not depend on time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tessera.stream import Stream


@contextmanager
def held(stream: Stream) -> Iterator[None]:
    """Everything enqueued on `stream` inside the block waits for its end."""
    gate = threading.Event()
    # The gate opens by itself in the end, so that a failing test cannot hang the process.
    stream.core.enqueue("hold", lambda: _wait(gate))
    try:
        yield
    finally:
        gate.set()


def _wait(gate: threading.Event) -> None:
    gate.wait(60)


def failing(stream: Stream, error: Exception) -> None:
    """Enqueues work that fails."""

    def fail() -> None:
        raise error

    stream.core.enqueue("fail", fail)
