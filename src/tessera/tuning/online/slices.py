"""Time for tuning, in slices between the calls of a program.

The *tuner* is a thread beside the program. It wants to compute (make candidates), and a quiet machine (time them).
`Slices` gives it both and takes no more than a share of the program's time for it:

- Every call that ends saves up `share` of the seconds since the call before it; at most `MOST_SAVED_S` are saved.
- A *working* slice begins at the end of a call while something is saved. It costs the processor seconds of the tuner's
  thread, for which the program's threads may have had to wait (they share an interpreter).
- A *quiet* slice begins at the end of a call, which waits for the slice to end, when what is saved covers what the last
  one took. It costs the seconds of the wait. A call waits for one such slice, and for more only within the share of the
  time since the call before; when a slice takes far longer than expected, it waits no more.

Samples are to be as short as `sample_s` says, so that one fits into the share of a single step where it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["working", "quiet"]

MOST_SAVED_S: Final = 0.1
"""A program that was idle for an hour does not owe six minutes of tuning."""

PATIENCE: Final = 4.0
"""A call waits for a quiet slice at most so many times as long as it is expected to take."""
LEAST_PATIENCE_S: Final = 0.02

LEAST_SAMPLE_S: Final = 0.5e-3
"""Shorter samples would say more of the clock and of the way to the worker than of a kernel."""

_FIRST_QUIET_S: Final = 0.005


class StoppedError(Exception):
    """Tells the tuner's thread to end; no user sees it."""


class Slices:
    """Hands a tuner its time. `share` is that of the program's time which it may take: 0.1 for a tenth.

    The tuner calls `begin` before each piece of work and `finish` after the last; the program's threads call `offer`
    after each call, which waits for `patience_s` seconds in any case. `clock` gives seconds, `processor_clock` those of
    the thread that asks.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.perf_counter,
        processor_clock: Callable[[], float] = time.thread_time,
        patience_s: float = LEAST_PATIENCE_S,
    ) -> None:
        self.share = share
        self.unlimited = False
        """While this is set the tuner waits for nobody."""
        self._clock, self._processor_clock = clock, processor_clock
        self._patience_s = patience_s
        self._step_s = 0.0
        self._state = threading.Condition(threading.Lock())
        self._offering = threading.Lock()
        self._wanted: Kind | None = None
        self._running: Kind | None = None
        self._began = 0.0
        self._stopped = False
        self._last: float | None = None
        self._saved_s = 0.0
        self._quiet_s = _FIRST_QUIET_S
        self._taken_s = 0.0

    @property
    def taken_s(self) -> float:
        """Seconds that slices have cost the program so far."""
        return self._taken_s

    # -- the tuner's side ---------------------------------------------------------------------------------------------

    def begin(self, kind: Kind) -> None:
        """Ends the slice that runs, and waits until one of this kind may begin. Raises StoppedError once `stop` was
        called.
        """
        with self._state:
            self._end()
            self._wanted = kind
            while self._running is None and not (self._stopped or self.unlimited):
                self._state.wait()
            self._wanted = None
            if self._stopped:
                self._running = None
                raise StoppedError
            self._running = kind
            self._began = self._reading(kind)

    def finish(self) -> None:
        """Ends the slice that runs: nothing is to be done for now."""
        with self._state:
            self._end()

    def expect(self, seconds: float) -> None:
        """Says how long quiet slices are going to take, until one is measured."""
        with self._state:
            self._quiet_s = max(seconds, _FIRST_QUIET_S)

    def check(self) -> None:
        """Raises StoppedError once `stop` was called."""
        if self._stopped:
            raise StoppedError

    def sample_s(self, wanted: float) -> float:
        """How long samples should take that are `wanted` to take so long: what a step of the program pays for."""
        return wanted if self.unlimited else min(wanted, max(self.share * self._step_s, LEAST_SAMPLE_S))

    def now(self) -> float:
        """Seconds by the clock of the slices."""
        return self._clock()

    def _end(self) -> None:
        if self._running == "working":
            self._charge(self._reading("working") - self._began)
        elif self._running == "quiet":
            self._quiet_s = self._reading("quiet") - self._began
        self._running = None
        self._state.notify_all()

    def _reading(self, kind: Kind) -> float:
        return self._processor_clock() if kind == "working" else self._clock()

    # -- the program's side -------------------------------------------------------------------------------------------

    def offer(self, waits: bool = True, drain: Callable[[], None] = lambda: None) -> None:
        """Says that a call has ended, and lets the tuner go on if there is time for what it wants.

        Before a quiet slice `drain` is called, which returns when the device has done what the call began. Where the
        caller never `waits`, a quiet slice begins beside the program. Of several threads that offer at once one is
        heard.
        """
        if not self._offering.acquire(blocking=False):
            return
        try:
            with self._state:
                self._offer(waits, drain)
        finally:
            self._offering.release()

    def _offer(self, waits: bool, drain: Callable[[], None]) -> None:
        now = self._clock()
        step = now - self._last if self._last is not None else 0.0
        earned = self.share * step
        self._step_s += (step - self._step_s) / 8
        self._saved_s = min(self._saved_s + earned, MOST_SAVED_S)
        first = True
        while self._fits() and (first or self._clock() + self._quiet_s <= now + earned):
            if self._wanted == "working" or not waits:
                self._grant()
                break
            begin = self._clock()
            drain()
            self._grant()
            ended = self._wait_for_quiet()
            self._charge(self._clock() - begin)
            if not ended:
                break
            first = False
        self._last = self._clock()  # what was waited for earns nothing

    def _fits(self) -> bool:
        if self._wanted is None or self._running is not None:
            return False
        needed = min(self._quiet_s, MOST_SAVED_S) if self._wanted == "quiet" else 0.0
        return self._saved_s >= needed and self._saved_s > 0.0

    def _grant(self) -> None:
        self._wanted, self._running = None, self._wanted
        self._state.notify_all()

    def _wait_for_quiet(self) -> bool:
        """Waits for the slice that runs; whether it has ended."""
        limit = max(PATIENCE * self._quiet_s, self._patience_s)
        return self._state.wait_for(lambda: self._running is None, limit)

    def _charge(self, seconds: float) -> None:
        self._saved_s -= seconds
        self._taken_s += seconds

    def stop(self) -> None:
        """Has the tuner's thread end where it waits for its next slice."""
        with self._state:
            self._stopped = True
            self._state.notify_all()

    def hurry(self, unlimited: bool) -> None:
        """Lets the tuner work without waiting for anybody, or no more."""
        with self._state:
            self.unlimited = unlimited
            self._state.notify_all()
