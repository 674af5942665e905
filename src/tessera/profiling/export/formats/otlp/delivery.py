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

from tessera.system import forks

_log = logging.getLogger("tessera.profile")

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
AT_EXIT_S: Final = 5.0
_REASONS: Final = 100


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

    def send(self, batch: Batch, until: float) -> int:
        """Sends a request, at `until` (of `time.monotonic`) at the latest, and gives the number of items that the
        collector says it rejected. Raises RetryableError and RefusedError.
        """

    def close(self) -> None:
        """Gives the connection back; the next request makes another."""


@dataclass(frozen=True)
class PendingBatches:
    """Batches to be made when their turn comes, and the number of items in all of them together."""

    items: int
    batches: Callable[[], Iterator[Batch]]


class Delivery:
    """The queue and its thread, which ends when nothing is left to send. `give_up_s` bounds how long one batch is
    tried, `waiting_jobs` the queue.
    """

    def __init__(self, transport: Transport, *, give_up_s: float = 60.0, waiting_jobs: int = 16) -> None:
        self.sent = 0
        self.dropped: Counter[str] = Counter()
        self._transport = transport
        self._give_up_s = give_up_s
        self._waiting_jobs = waiting_jobs
        self._jobs: deque[PendingBatches] = deque()
        self._changed = threading.Condition(forks.lock())
        self._open = 0  # items of the job being delivered that are counted nowhere yet
        self._abandoned = False  # that job is, and its items are counted
        self._hurry: float | None = None  # when everything must be done
        self._thread: threading.Thread | None = None  # None when nothing is being delivered

    def submit(self, job: PendingBatches) -> None:
        """Enqueues a job and returns at once; one that the queue has no room for is counted as dropped.

        Where no thread can be started, as at the end of a program, the job is delivered before this returns, within
        `AT_EXIT_S`.
        """
        with self._changed:
            self._forget_if_forked()
            if len(self._jobs) >= self._waiting_jobs:
                self._drop(job.items, f"more than {self._waiting_jobs} profiles were waiting")
                return
            self._jobs.append(job)
            if self._thread is not None or self._started():
                self._changed.notify_all()
                return
            self._thread = threading.current_thread()
            self._hurry = time.monotonic() + AT_EXIT_S
        try:
            self._run()
        finally:
            self._hurry = None

    def _started(self) -> bool:
        """Whether there is a thread now."""
        thread = threading.Thread(target=self._run, name="tessera-otlp", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        atexit.register(self.flush, AT_EXIT_S)
        return True

    def _forget_if_forked(self) -> None:
        """In a fork of the program, which has no thread, what waits is the parent's to deliver."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._jobs.clear()
            self._transport.close()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything was delivered or dropped. What is not delivered in time is dropped, also what is on
        its way then, which the collector may still get; whether nothing was dropped.
        """
        with self._changed:
            self._forget_if_forked()
            before = self.dropped.total()
            self._hurry = time.monotonic() + timeout_s
            self._changed.notify_all()
            # The last request may take a little longer, to be dropped with a better reason.
            self._changed.wait_for(lambda: self._thread is None, timeout_s + FIRST_WAIT_S)
            self._hurry = None
            if self._thread is not None:
                self._abandoned = True
                waiting = sum(job.items for job in self._jobs)
                self._jobs.clear()
                self._drop(self._open + waiting, "there was no time left")
                self._open = 0
            return self.dropped.total() == before

    def _run(self) -> None:
        while (job := self._next()) is not None:
            finished = False
            try:
                for batch in job.batches():
                    self._deliver(batch)
                    if self._abandoned:
                        break
                finished = True
            finally:
                if not finished:  # an error of ours, which is printed and ends this thread
                    self._give_over()

    def _next(self) -> PendingBatches | None:
        """The next job, or None, with which this thread ends."""
        with self._changed:
            self._drop(self._open, "an error ended their delivery")
            self._abandoned, self._open = False, 0
            if self._jobs:
                job = self._jobs.popleft()
                self._open = job.items
                return job
            self._end()
            return None

    def _give_over(self) -> None:
        """Ends this thread; another delivers what waits."""
        with self._changed:
            self._drop(self._open, "an error ended their delivery")
            self._abandoned, self._open = False, 0
            self._end()
            if self._jobs and not self._started():
                self._drop(sum(job.items for job in self._jobs), "no thread could be started")
                self._jobs.clear()

    def _end(self) -> None:
        self._transport.close()
        atexit.unregister(self.flush)
        self._thread = None
        self._changed.notify_all()

    def _deliver(self, batch: Batch) -> None:
        begun, wait_s = time.monotonic(), FIRST_WAIT_S
        while not self._abandoned:
            try:
                rejected = self._transport.send(batch, self._until(begun))
            except RefusedError as error:
                return self._settle(batch.items, batch.items, str(error))
            except RetryableError as error:
                pause = max(error.wait_s or 0.0, wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                if time.monotonic() + pause > self._until(begun):
                    return self._settle(batch.items, batch.items, str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._hurry is not None, pause)
                if self._hurry is not None:  # less patience, but no less than a turn of the processor
                    time.sleep(min(pause, FIRST_WAIT_S))
                continue
            return self._settle(batch.items, rejected, "rejected by the collector")
        return None

    def _until(self, begun: float) -> float:
        """When a batch that was begun then is given up."""
        hurry, patience = self._hurry, begun + self._give_up_s
        return patience if hurry is None else min(patience, hurry)

    def _settle(self, items: int, lost: int, reason: str) -> None:
        """Counts a batch, unless that was done without waiting for it. A collector may say of any number that it was
        lost.
        """
        with self._changed:
            if self._abandoned:
                return
            items = min(items, self._open)
            lost = min(max(lost, 0), items)
            self._open -= items
            self.sent += items - lost
            self._drop(lost, reason)

    def _drop(self, items: int, reason: str) -> None:
        """Counts items as dropped; the lock is held."""
        if not items:
            return
        if reason not in self.dropped and len(self.dropped) >= _REASONS:  # a collector may have another each time
            reason = "other reasons"
        if reason not in self.dropped:
            _log.warning("OTLP: %d spans and points are lost: %s", items, reason)
        self.dropped[reason] += items
