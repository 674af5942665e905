"""A thread beside the program that compiles partitions while torch computes in their place."""

from __future__ import annotations

import atexit
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

Job: TypeAlias = Callable[[], None]

_jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_idle = threading.Event()
_left = 0


def start(job: Job) -> None:
    """Has a job done soon, under the caller's numerics policy. It may not raise."""
    global _thread, _left  # noqa: PLW0603 - the process has one
    context = contextvars.copy_context()
    with _lock:
        _left += 1
        _idle.clear()
        _jobs.put(lambda: context.run(job))
        if _thread is None:
            _thread = threading.Thread(target=_work, name="tessera-compile", daemon=True)
            _thread.start()


def wait() -> None:
    """Returns once all jobs are done."""
    if _left:
        _idle.wait()


def _work() -> None:
    global _left  # noqa: PLW0603 - the process has one
    while True:
        job = _jobs.get()
        try:
            job()
        finally:
            with _lock:
                _left -= 1
                if not _left:
                    _idle.set()


def _drop() -> None:
    """Forgets the jobs that wait; the one in progress ends, since native code cannot be left in the middle."""
    global _left  # noqa: PLW0603 - the process has one
    with _lock:
        while not _jobs.empty():
            _jobs.get()
            _left -= 1
    wait()


def _begin_anew() -> None:
    """In a fork there is no thread, and nobody waits for the parent's jobs."""
    global _jobs, _lock, _thread, _idle, _left
    _jobs, _lock, _thread, _idle, _left = queue.SimpleQueue(), threading.Lock(), None, threading.Event(), 0


atexit.register(_drop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
