"""Events: points in a stream that other streams, and the program, can wait for.

>>> ready = event.create()
>>> ready.record(copying)               # after all that `copying` was given so far
>>> ready.wait(computing)               # what `computing` is given from now on comes after that
"""

from __future__ import annotations

from tessera.runtime.streams.stream import Event

__all__ = ["Event", "create"]


def create(name: str | None = None) -> Event:
    """A new event, which has not been recorded: nobody waits for it."""
    return Event(name)
