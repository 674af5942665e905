"""Locks in forks of a program.

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


def _free() -> None:
    for each in list(_locks):
        each._at_fork_reinit()  # as the standard library frees its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
