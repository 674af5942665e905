"""Which stream a thread served when: work is shown under the name of its stream, also when the thread is gone and
another one has its number.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

MOST_ENDED: Final = 4096
"""Threads that have ended and are still known, unless a session keeps them."""


class Track(NamedTuple):
    """What a thread does: the work of stream `stream_id` (0: the program's own) under a name, "" if it has none."""

    stream_id: int
    name: str


class Service(NamedTuple):
    """A time in which a thread served a stream, in nanoseconds of `time.monotonic_ns`; the end is open."""

    thread: int
    start_ns: int
    track: Track


PROGRAM: Final = Track(0, "")

_lock = threading.Lock()
_services: dict[int, list[Service]] = {}
_ended: dict[int, None] = {}


def begin(track: Track) -> None:
    """From now on the calling thread serves a stream."""
    _note(track)


def end() -> None:
    """From now on the calling thread's number may belong to anybody."""
    _note(PROGRAM)
    with _lock:
        _ended[threading.get_ident()] = None
        while len(_ended) > MOST_ENDED:
            oldest = next(iter(_ended))
            del _ended[oldest]
            _services.pop(oldest, None)


def _note(track: Track) -> None:
    thread = threading.get_ident()
    with _lock:
        _ended.pop(thread, None)
        # Replaced, not appended to: readers hold the list without the lock.
        _services[thread] = [*_services.get(thread, []), Service(thread, time.monotonic_ns(), track)][-MOST_ENDED:]


def known() -> dict[int, list[Service]]:
    """What every thread served, in order of time. A session keeps it at its end."""
    with _lock:
        return dict(_services)


def track_at(services: dict[int, list[Service]], thread: int, instant_ns: int) -> Track:
    """What a thread did at an instant."""
    for service in reversed(services.get(thread, ())):
        if service.start_ns <= instant_ns:
            return service.track
    return PROGRAM


def names(threads: Iterable[int]) -> dict[int, str]:
    """The names of those threads that are alive."""
    alive = {thread.ident: thread.name for thread in threading.enumerate()}
    return {thread: alive[thread] for thread in threads if thread in alive}


def _renew_lock() -> None:
    """In a child after fork: another thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603 - replaced once in a child
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
