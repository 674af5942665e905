"""Locks in forks of a program, and imports.

A fork has one thread, and a copy of every lock as it was: one that another thread of the parent held would be held for
ever. What such a lock guards here are memories of things that can be had again, each changed by single stores, so that
the fork may go on with what it finds.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final
from weakref import WeakSet

_locks: Final[WeakSet[Any]] = WeakSet()
_awaited: Final[list[threading.RLock]] = []
_taken: Final[list[threading.RLock]] = []


def awaited_lock() -> threading.RLock:
    """A lock that its holder may take again, and whose release a fork of the program waits for."""
    made = threading.RLock()
    _awaited.append(made)
    return made


importing: Final = awaited_lock()
"""Held around imports that a program's first evaluation makes, whose end a fork waits for: Python locks each module
while it is imported, and in a fork such a lock would be held for ever by a thread that is not there.
"""


def lock() -> threading.Lock:
    """A lock that nobody holds in a fork of the program."""
    made = threading.Lock()
    _locks.add(made)
    return made


def recursive_lock() -> threading.RLock:
    """A lock that its holder may take again, and that nobody holds in a fork of the program."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _take() -> None:
    # `importing` first: meanwhile a module may be imported that makes another lock, which is then taken, too.
    for each in _awaited:
        each.acquire()
        _taken.append(each)


def _give_back() -> None:
    while _taken:
        _taken.pop().release()


def _free() -> None:
    for each in list(_locks):
        each._at_fork_reinit()  # as the standard library frees its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_give_back, after_in_child=_give_back)
    os.register_at_fork(after_in_child=_free)
