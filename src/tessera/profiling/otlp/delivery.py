"""Delivering batches to a collector that may be slow, restarted or gone, without holding up the program.

One thread sends, in order. What fails for a while is sent again, ever more slowly; what cannot be delivered is counted
with its reason, and said once on the log `tessera.profile`.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from tessera import forks

_log = logging.getLogger("tessera.profile")

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
IDLE_S: Final = 1.0
"""How long the thread waits for another profile before it ends."""
AT_EXIT_S: Final = 5.0


@dataclass(frozen=True)
class Batch:
    """A request: `signal` is "traces" or "metrics", `items` how many spans or points are in it."""

    signal: str
    items: int
    payload: bytes


class RetryableError(Exception):
    """The collector could not be reached or said "later"; `wait_s` is how long it asks to wait, if it does."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class RefusedError(Exception):
    """The collector will never take this request."""


class Transport(Protocol):
    """A way to a collector."""

    def send(self, batch: Batch, within_s: float) -> int:
        """Sends a request and gives the number of items that the collector rejected, in so many seconds at most,
        however slowly the collector answers. Raises RetryableError and RefusedError.
        """

    def close(self) -> None:
        """Gives the connection back; sending makes a new one."""

    def abort(self) -> None:
        """Has what another thread is sending fail at once."""


@dataclass(frozen=True)
class Job:
    """Batches to be made when their turn comes, and the number of items in all of them together."""

    items: int
    batches: Callable[[], Iterator[Batch]]


class Delivery:
    """The thread and its queue. `give_up_s` bounds how long one batch is tried, `waiting_jobs` the queue."""

    def __init__(self, transport: Transport, *, give_up_s: float = 60.0, waiting_jobs: int = 16) -> None:
        self.sent = 0
        self.dropped: Counter[str] = Counter()
        self._transport = transport
        self._give_up_s = give_up_s
        self._waiting_jobs = waiting_jobs
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition(forks.lock())
        self._counting = forks.lock()
        self._busy = False
        self._hurry: float | None = None  # when everything must be done
        self._thread: threading.Thread | None = None
        self._is_registered = False

    def submit(self, job: Job) -> None:
        """Enqueues a job and returns at once; one that the queue has no room for is counted as dropped."""
        with self._changed:
            if len(self._jobs) >= self._waiting_jobs:
                self._drop(job.items, f"more than {self._waiting_jobs} profiles were waiting")
                return
            self._jobs.append(job)
            if not self._is_registered:
                atexit.register(self.flush, AT_EXIT_S)
                self._is_registered = True
            if self._thread is None or not self._thread.is_alive():  # in a fork of the program it is gone
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tessera-otlp", daemon=True)
        self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything was delivered or dropped. What is not delivered in time is dropped; whether nothing
        of that was.
        """
        before = self.dropped.total()
        with self._changed:
            self._hurry = time.monotonic() + timeout_s
            self._changed.notify_all()
            if not self._changed.wait_for(self._is_idle, timeout_s):
                while self._jobs:
                    self._drop(self._jobs.popleft().items, "there was no time left")
                self._transport.abort()
            idle = self._changed.wait_for(self._is_idle, AT_EXIT_S)
            self._hurry = None
        return idle and self.dropped.total() == before

    def _is_idle(self) -> bool:
        return not self._jobs and not self._busy

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: bool(self._jobs), IDLE_S):
                    self._thread = None
                    self._transport.close()
                    return
                self._busy = True
                job = self._jobs.popleft()
            left = job.items
            try:
                for batch in job.batches():
                    self._deliver(batch)
                    left -= batch.items
            finally:
                if left:  # an error of ours, which is printed and ends this thread
                    with self._changed:
                        self._drop(left, "an error ended their delivery")
                        self._start()

    def _deliver(self, batch: Batch) -> None:
        end, wait_s = time.monotonic() + self._give_up_s, FIRST_WAIT_S
        while True:
            try:
                rejected = self._transport.send(batch, max(self._until(end) - time.monotonic(), FIRST_WAIT_S))
            except RefusedError as error:
                return self._drop(batch.items, str(error))
            except RetryableError as error:
                pause = error.wait_s if error.wait_s is not None else wait_s * random.uniform(0.5, 1.0)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                if time.monotonic() + pause > self._until(end):
                    return self._drop(batch.items, str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._hurry is not None, pause)
                if self._hurry is not None:  # less patience, but no less than a turn of the processor
                    time.sleep(min(pause, FIRST_WAIT_S))
                continue
            self.sent += batch.items - rejected
            if rejected:
                self._drop(rejected, "rejected by the collector")
            return None

    def _until(self, end: float) -> float:
        hurry = self._hurry
        return end if hurry is None else min(end, hurry)

    def _drop(self, items: int, reason: str) -> None:
        if reason not in self.dropped:
            _log.warning("OTLP: %d spans and points are lost: %s", items, reason)
        with self._counting:  # the thread and whoever submits or flushes
            self.dropped[reason] += items
