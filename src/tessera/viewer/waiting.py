"""Answers that take long: who asks gets them within a limit of time, or is told how far they are and asks again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.errors import ProfileError

_KEPT_S: Final = 30.0
"""How long an answer is kept for somebody who was told to ask again: pages do so at once."""


class BusyError(ProfileError):
    """An answer is still being made. `progress` is the share of its steps that are done, from 0 to 1; None where the
    answer does not tell.
    """

    def __init__(self, progress: float | None) -> None:
        super().__init__("this is still being computed", hints=["ask again in a second"])
        self.progress = progress


@dataclass
class _Job:
    ended: threading.Event = field(default_factory=threading.Event)
    progress: float | None = None
    answer: Any = None
    error: Exception | None = None
    ended_s: float = math.inf


_current: Final[ContextVar[_Job | None]] = ContextVar("job", default=None)


def tell(progress: float) -> None:
    """Says how far the answer is that this thread makes, from 0 to 1. Does nothing where nobody would be told."""
    job = _current.get()
    if job is not None:
        job.progress = progress


class PendingAnswers:
    """Has answers made by threads of their own, one for each question however often it is asked."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._jobs: dict[Hashable, _Job] = {}
        self._lock = threading.Lock()

    def answer(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, or raises. Raises BusyError once the limit has passed; the answer goes on being made, and
        the next one who asks with this key gets it.
        """
        if math.isinf(self._limit_s):
            return make()
        with self._lock:
            now = time.monotonic()
            self._jobs = {key: job for key, job in self._jobs.items() if now - job.ended_s < _KEPT_S}
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = _Job()
                # A daemon: Ctrl-C does not wait for an answer that nobody will read.
                threading.Thread(target=self._make, args=(job, make), daemon=True).start()
        if not job.ended.wait(self._limit_s):
            raise BusyError(job.progress)
        with self._lock:
            if self._jobs.get(key) is job:
                del self._jobs[key]
        if job.error is not None:
            raise job.error
        return job.answer

    @staticmethod
    def _make(job: _Job, make: Callable[[], Any]) -> None:
        _current.set(job)
        try:
            job.answer = make()
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to those who ask for the answer
            job.error = error
        job.ended_s = time.monotonic()
        job.ended.set()
