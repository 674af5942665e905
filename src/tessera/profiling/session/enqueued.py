"""Work that was enqueued while a session was on, and has to run before it ends."""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[], None]] = []


def before_end(wait: Callable[[], None]) -> None:
    """Has the end of every session call `wait`, which returns when what was enqueued inside it has run."""
    _waiting.append(wait)


def wait() -> None:
    """Returns when what was enqueued has run. Raises what that raised."""
    for each in _waiting:
        each()
