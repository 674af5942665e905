"""Warm-up tuning: kernels of a running program are tuned in slices between its calls.

The first call of a kernel compiles the schedule that is known for it and runs. Binding notes a `Ticket` for it; the
calls that follow count on that ticket and offer slices (`slices.py`). A thread, the tuner, takes the ticket whose calls
take longest and searches: it compiles candidates in working slices; its worker process loads and checks them, with a
priority that leaves it no more than the share of a busy processor, and times them in quiet slices, in which the
program's call waits. The winner is compiled and stored; then the ticket is settled, and the plans that hold it are
bound once more.

Of the ranks of a job, the one that meets a kernel first tunes it (`agreement.py`); the others hear of the winner
between their calls.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from tessera.errors import TesseraError
from tessera.scheduling.language.schedule import Schedule
from tessera.system.priority import at_niceness
from tessera.tuning.config import Config, Warming, WarmingState
from tessera.tuning.interfaces import Progress, TuningProblem
from tessera.tuning.measure.measurement import Done, Effort, Measurer, SubprocessMeasurer, unheard
from tessera.tuning.measure.protocol import Request, TakeSample
from tessera.tuning.measure.trial import Trial
from tessera.tuning.measure.workload import Case
from tessera.tuning.online import agreement
from tessera.tuning.online.agreement import Agreement
from tessera.tuning.online.slices import Slices, StoppedError
from tessera.tuning.online.ticket import Ticket, TuningWarning, heard, met
from tessera.tuning.search import ranks
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.tuner import tune_on_device
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.identity import Identity, Provenance

TRIALS: Final = 16
"""Candidates that a kernel is tried with, unless a limit is given: the model's favourites, and climbs from there."""
LEAST_CALLS: Final = 2
"""A kernel that is called once is not tuned: its shape may never come again."""
LINGER_S: Final = 10.0
"""Seconds that the tuner and its worker process wait for more to do."""
MOST_TICKETS: Final = 4096
LIMITS: Final = SearchLimits(max_trials=TRIALS, budget_s=1e6)
"""Slices bound the time that is spent; the seconds that go by between them are no budget."""

_HEARS_EVERY_S: Final = 0.25
_LEAVING_S: Final = 0.5
_EXIT_S: Final = 10.0
"""Seconds that a program which ends waits for the tuner to end what it computes: a compilation, or a reference."""
_NICE_STEP: Final = 1.25

Before = Callable[[Request], None]
MeasurerOf = Callable[[Before], Measurer]
"""Makes the measurer of a warm-up; it calls its argument before each request to its worker."""


def niceness_of(share: float) -> int:
    """The niceness at which a process gets about this share of a processor that another process wants, too: each step
    divides its weight by 1.25 (sched(7)). From 1 on: what works beside a program steps back behind it.
    """
    wanted = math.log((1 - share) / share, _NICE_STEP) if share < 1 else 0.0
    return min(max(round(wanted), 1), 19)


class Warmup:
    """The tickets of this process and the thread that works them off. Methods may be called from several threads.

    `share` is that of the program's time which may be spent. `measurer` makes what candidates are measured with;
    `limits` bounds each search. `job` gives the agreement with other ranks, if there are any.
    """

    def __init__(
        self,
        share: float,
        measurer: MeasurerOf,
        limits: SearchLimits = LIMITS,
        slices: Slices | None = None,
        job: Callable[[], Agreement | None] = agreement.of_this_job,
    ) -> None:
        self.share = share
        self._measurer_of, self._limits = measurer, limits
        self._slices = slices or Slices(share)
        self._job_of = job
        self._changed = threading.Condition(threading.Lock())
        self._hearing = threading.Lock()
        self._tickets: dict[tuple[TuningDatabase, Identity], Ticket] = {}
        self._elsewhere: list[Ticket] = []
        self._heard, self._heard_s = 0, 0.0
        self._collecting = threading.local()
        self._thread: threading.Thread | None = None
        self._idle = True
        self._stopped = False
        self._waiting = 0
        self._warnings: list[str] = []
        self._measurer: _Checked | None = None
        weakref.finalize(self, int)  # has worker processes ended after `_exit`, which is registered later
        self._process = os.getpid()

    # -- the program's side -------------------------------------------------------------------------------------------

    @contextmanager
    def collecting(self) -> Iterator[list[Ticket]]:
        """Collects the unsettled tickets of the kernels that this thread chooses schedules for."""
        collected: list[Ticket] = []
        before = getattr(self._collecting, "tickets", None)
        self._collecting.tickets = collected
        try:
            yield collected
        finally:
            self._collecting.tickets = before

    def choose(self, problem: TuningProblem, database: TuningDatabase, known: Config) -> Config:
        """What a kernel that is being bound runs under: what is `known` for it, or what the job has agreed on. It is
        tuned from the next calls on, unless that was done before.

        Outside of `collecting` schedules are only looked at, and nothing is tuned.
        """
        collected: list[Ticket] | None = getattr(self._collecting, "tickets", None)
        if collected is None or not self._is_alive():
            return known
        ticket = self._tickets.get((database, problem.identity))
        if ticket is None:
            job = self._job_of()
            if job is None and known.is_fresh:
                return known
            ticket = self._add(met(problem, database, known, job))
        if not ticket.is_settled and ticket not in collected:
            collected.append(ticket)
        return ticket.in_force(known)

    def between_calls(
        self, tickets: Sequence[Ticket], calls: int = 1, waits: bool = True, drain: Callable[[], None] = lambda: None
    ) -> bool:
        """Says that calls of a plan have ended that launches kernels with these tickets; whether one of them is settled
        by now, so that the plan should be bound once more. `waits` and `drain` are those of `Slices.offer`.
        """
        for ticket in tickets:
            ticket.calls += calls
        if not self._is_alive():
            return True
        if self._idle and any(ticket.calls >= LEAST_CALLS and ticket.state == "waiting" for ticket in tickets):
            self._start()
        self._slices.offer(waits, drain)
        if self._elsewhere:
            self._hear()
        return any(ticket.is_settled for ticket in tickets)

    def warn(self) -> None:
        """Warns of the kernels that could not be tuned, each once: in a thread of the user's."""
        while self._warnings:
            with suppress(IndexError):  # another thread was faster
                warnings.warn(self._warnings.pop(0), TuningWarning, stacklevel=3)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Tunes all that has a ticket without heeding the share, and waits for it; False if `timeout_s` went by."""
        if not self._is_alive():
            return True
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._hurry(1)
        try:
            while self._here() and not self._stopped:
                self._start()  # anew, too, where an error has ended it
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                with self._changed:
                    self._changed.wait_for(self._at_rest, None if left_s == math.inf else left_s)
            return True
        finally:
            self._hurry(-1)

    def _hurry(self, more: int) -> None:
        """Has the tuner heed no share as long as somebody waits."""
        with self._changed:
            self._waiting += more
            self._slices.hurry(self._waiting > 0)

    def _at_rest(self) -> bool:
        """Whether the tuner has nothing to do, or is gone."""
        return self._stopped or self._thread is None or not self._here()

    @property
    def taken_s(self) -> float:
        """Seconds that tuning has cost the program so far."""
        return self._slices.taken_s

    def reports(self) -> tuple[Warming, ...]:
        """The progress of every ticket, in the order in which they were collected."""
        return tuple(ticket.report(self._limits.max_trials) for ticket in list(self._tickets.values()))

    def _exit(self) -> None:
        self.stop(_EXIT_S)

    def stop(self, patience_s: float = _LEAVING_S) -> None:
        """Ends the tuner and its worker; what is not settled stays as it is. Waits for at most `patience_s` seconds for
        a piece of work to end.
        """
        if os.getpid() != self._process:
            return  # the thread, and the locks it may hold, are the parent's
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._slices.stop()
        atexit.unregister(self._exit)
        thread, measurer = self._thread, self._measurer
        if measurer is not None:
            measurer.abort()
        for ticket in self._open():
            if ticket.state == "tuning":
                ticket.problem.abort()
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience_s)

    def _is_alive(self) -> bool:
        """Whether tickets are worked off: not once it was stopped, nor in a fork, which has no thread for it."""
        return not self._stopped and os.getpid() == self._process

    def _add(self, ticket: Ticket) -> Ticket:
        key = ticket.database, ticket.problem.identity
        with self._changed:
            if len(self._tickets) >= MOST_TICKETS:
                self._tickets = {key: ticket for key, ticket in self._tickets.items() if not ticket.is_decided}
            ticket = self._tickets.setdefault(key, ticket)
            if ticket.state == "elsewhere" and ticket not in self._elsewhere:
                self._elsewhere.append(ticket)
                self._heard = -1  # the decision may have been announced before
        return ticket

    def _open(self) -> list[Ticket]:
        return [ticket for ticket in list(self._tickets.values()) if not ticket.is_decided]

    def _here(self) -> list[Ticket]:
        return [ticket for ticket in self._open() if ticket.state != "elsewhere"]

    def _start(self) -> None:
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._work, name="tessera-warmup", daemon=True)
                self._thread.start()
                atexit.unregister(self._exit)
                atexit.register(self._exit)  # a thread that compiles must not outlive the interpreter
            self._changed.notify_all()

    # -- other ranks --------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Takes up what other ranks have announced, now and then."""
        if not self._hearing.acquire(blocking=False):
            return
        try:
            now = self._slices.now()
            if now - self._heard_s >= _HEARS_EVERY_S:
                self._heard_s = now
                self._heard = heard(self._elsewhere, self._heard)
                self._elsewhere = [ticket for ticket in self._elsewhere if not ticket.is_decided]
        finally:
            self._hearing.release()

    # -- the tuner's thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        measurer = self._measurer = _Checked(self._measurer_of(self._before), self._slices)
        try:
            while (ticket := self._next()) is not None:
                ticket.context.run(self._tune, ticket, measurer)
        except StoppedError:
            pass
        finally:
            with self._changed:
                self._thread, self._idle = None, True
                self._changed.notify_all()
            self._slices.finish()
            measurer.close()

    def _before(self, request: Request) -> None:
        if isinstance(request, TakeSample):
            self._slices.begin("quiet")
        else:
            self._slices.check()

    def _next(self) -> Ticket | None:
        """The ticket that most of the program's time goes to; None when there was none for `LINGER_S`."""
        with self._changed:
            while not self._stopped:
                least = 0 if self._waiting else LEAST_CALLS
                ready = [ticket for ticket in self._open() if ticket.state == "waiting" and ticket.calls >= least]
                if ready:
                    self._idle = False
                    return max(ready, key=lambda ticket: ticket.weight_s)
                self._slices.finish()
                self._idle = True
                if not self._changed.wait(LINGER_S):
                    return None
        return None

    def _tune(self, ticket: Ticket, measurer: Measurer) -> None:
        state: WarmingState = "failed"
        ticket.begin()
        try:
            self._slices.begin("working")
            self._slices.expect(2 * ticket.predicted_s)
            self._search(ticket, measurer)
            state = "done"
        except TesseraError as error:
            ticket.note = str(error)
            self._warnings.append(f"{ticket.problem.identity} is not tuned: {error}")
        except StoppedError:
            state = "waiting"
            raise
        finally:
            if state == "failed":
                ticket.note = ticket.note or "an error of Tessera, printed by the thread that it ended"
                ticket.keep_first()
            # Last, since from here on plans are bound again.
            ticket.state = state
            with self._changed:
                self._changed.notify_all()

    def _search(self, ticket: Ticket, measurer: Measurer) -> None:
        problem, database = ticket.problem, ticket.database
        paced = replace(problem, build=self._paced(problem.build))
        provenance = Provenance.current(problem.generator, "on_device")

        def advance(step: Progress) -> None:
            ticket.trials, ticket.best_s = step.done, step.best_s if step.best_s < float("inf") else None

        with ranks.without_team(), at_niceness(niceness_of(self.share)):
            entry, result = tune_on_device(paced, provenance, measurer, self._limits, database, advance)
        self._slices.begin("working")
        problem.adopt(entry.schedule)
        database.put(entry)
        ticket.trials, ticket.best_s, ticket.note = len(result.trials), entry.measured_s, result.reason
        ticket.announce(entry.schedule)

    def _paced(self, build: Callable[[Schedule], Case]) -> Callable[[Schedule], Case]:
        def paced(schedule: Schedule) -> Case:
            self._slices.begin("working")
            try:
                return build(schedule)
            finally:
                self._slices.check()  # what failed because the program ends has not failed

        return paced


class _Checked:
    """A measurer whose trials do not count once the tuner was told to end: its worker may have been ended under it."""

    def __init__(self, measurer: Measurer, slices: Slices) -> None:
        self._measurer, self._slices = measurer, slices

    def measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort, done: Done = unheard) -> list[Trial]:
        """As the measurer does; what follows is work of the tuner's again. Raises StoppedError."""

        def count(trial: Trial) -> None:
            self._slices.begin("working")
            done(trial)

        fitting = replace(effort, sample_s=self._slices.sample_s(effort.sample_s))
        return self._measurer.measure(cases, fitting, count)

    def abort(self) -> None:
        """Ends what the measuring process is doing, from another thread."""
        if isinstance(self._measurer, SubprocessMeasurer):
            self._measurer.abort()

    def close(self) -> None:
        """Ends the measuring process, where there is one."""
        if isinstance(self._measurer, SubprocessMeasurer):
            self._measurer.close()


class Prompted:
    """A measurer of recorded tables in a warm-up: all of a batch is one sample."""

    def __init__(self, measurer: Measurer, before: Before) -> None:
        self._measurer, self._before = measurer, before

    def measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort, done: Done = unheard) -> list[Trial]:
        """As the measurer does, when the program waits."""
        self._before(TakeSample(0, effort.sample_s))
        return self._measurer.measure(cases, effort, done)
