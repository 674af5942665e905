"""Tickets: kernels of a running program that are to be tuned, and under which schedule they run meanwhile."""

from __future__ import annotations

import contextvars
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.config import Config, Warming, WarmingState
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.online.agreement import DECIDES_WITHIN_S, Agreement, Decision, LostStoreError
from tessera.tuning.store.database import TuningDatabase

AHEAD_S: Final = 1.0
LEAST_AHEAD: Final = 4
"""A winner is taken up so many calls after it was announced, or the calls of so many seconds, as often as the kernel
was called while it was tuned: by then all ranks have heard.
"""


class TuningWarning(UserWarning):
    """A kernel could not be tuned while the program ran: it runs with the schedule that was known for it."""


@dataclass(eq=False)
class Ticket:
    """A kernel that is to be tuned. `calls` counts the calls of plans that launch it.

    Where several ranks do the same, `job` is their agreement: the kernel runs under `first`, which one of them has
    chosen, until a decision follows.
    """

    problem: TuningProblem
    database: TuningDatabase
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    job: Agreement | None = None
    first: Schedule | None = None
    state: WarmingState = "waiting"
    calls: int = 0
    trials: int = 0
    best_s: float | None = None
    note: str = ""
    predicted_s: float = field(init=False)
    since_s: float = field(init=False, default_factory=time.monotonic)
    _next: Decision | None = field(init=False, default=None)
    _begin: tuple[int, float] = field(init=False, default=(0, 0.0))

    def __post_init__(self) -> None:
        self.predicted_s = self.problem.predict(self.problem.space.default)

    @property
    def is_decided(self) -> bool:
        """Whether it is known what becomes of it."""
        return self.state in ("done", "failed")

    @property
    def is_settled(self) -> bool:
        """Whether plans of the kernel that are bound now stay as they are."""
        return self.is_decided and (self._next is None or self.calls >= self._next.from_call)

    @property
    def age_s(self) -> float:
        """Seconds since the kernel was met."""
        return time.monotonic() - self.since_s

    @property
    def weight_s(self) -> float:
        """Seconds that the program has spent in it, as far as the cost model knows."""
        return self.calls * self.predicted_s

    def give_up(self, reason: str) -> None:
        """Has the kernel stay as it is."""
        self.state, self.note = "failed", reason

    def decide(self, decision: Decision) -> None:
        """Has the kernel run under what the job has decided, from the call on that the decision names."""
        self._next, self.state = decision, "done"

    def begin(self) -> None:
        """Says that the kernel is being tuned from now on."""
        self.state, self._begin = "tuning", (self.calls, time.monotonic())

    def announce(self, winner: Schedule) -> None:
        """Tells the other ranks of the job, if any, what was found: far enough ahead for all of them to hear of it
        before it is used. A winner that comes late is left to the next job.
        """
        if self.age_s <= DECIDES_WITHIN_S:
            calls, seconds = self.calls - self._begin[0], max(time.monotonic() - self._begin[1], 1e-3)
            ahead = math.ceil(AHEAD_S * calls / seconds)
            self._announce(Decision(winner, True, self.calls + max(ahead, LEAST_AHEAD)))
        else:
            self.keep_first()

    def keep_first(self) -> None:
        """Tells the other ranks of the job, if any, that nothing better is going to come."""
        if self.first is not None:
            self._announce(Decision(self.first, True))

    def _announce(self, decision: Decision) -> None:
        if self.job is None:
            return
        try:
            self.job.announce(self.problem.identity, decision)
        except LostStoreError as error:
            self.note = f"{self.note}; not used here, since other ranks cannot hear of it: {error}"
        else:
            self._next = decision

    def in_force(self, known: Config) -> Config:
        """What the kernel runs under now: what is `known` for it, or what the ranks of the job have agreed on. Where
        that is no schedule of its space, the ranks run different programs: that is a `TuningWarning`.
        """
        if self.first is None:
            return known
        agreed = self._next.schedule if self._next is not None and self.is_settled else self.first
        space = self.problem.space
        if set(agreed) != set(space.default) or space.violations(agreed):
            said = f"the ranks of this job agreed on {agreed} for {self.problem.identity}, which is not legal here"
            warnings.warn(f"{said}: do all run the same Tessera?", TuningWarning, stacklevel=3)
            self.first = None
            return known
        # A default is what the cost model makes of it, which may differ from one machine to the next.
        is_same = agreed == known.schedule and known.source != "default"
        return known if is_same else replace(known, schedule=agreed, source="agreed")

    def report(self, limit: int) -> Warming:
        """Its progress, for `autotune.status()`."""
        identity = str(self.problem.identity)
        return Warming(identity, self.state, self.calls, self.trials, limit, self.best_s, self.note)


def met(problem: TuningProblem, database: TuningDatabase, known: Config, job: Agreement | None) -> Ticket:
    """The ticket of a kernel that this process meets; the first of the ranks of a `job` to meet it is to tune it."""
    ticket = Ticket(problem, database, job=job)
    if job is None:
        return ticket
    try:
        held, is_ours = job.propose(problem.identity, Decision(known.schedule, known.is_fresh))
    except LostStoreError as error:
        ticket.give_up(f"the ranks of this job cannot agree: {error}")
        return ticket
    ticket.first = held.schedule
    ticket.state = "done" if held.final else "waiting" if is_ours else "elsewhere"
    return ticket


def heard(tickets: Sequence[Ticket], count: int) -> int:
    """Takes up what ranks have decided for tickets that they tune, if the job has not made `count` announcements any
    more; the number of them by now. Those of ranks that do not answer any more stay as they are.
    """
    try:
        for job in {ticket.job for ticket in tickets if ticket.job is not None}:
            news = job.news()
            if news != count:
                count = news
                _take_up(tickets, job)
    except LostStoreError as error:
        for ticket in tickets:
            ticket.give_up(f"no rank can be heard any more: {error}")
    for ticket in tickets:
        if not ticket.is_decided and ticket.age_s > 2 * DECIDES_WITHIN_S:
            ticket.give_up("the rank that was to tune it has announced nothing")
    return count


def _take_up(tickets: Sequence[Ticket], job: Agreement) -> None:
    for ticket in tickets:
        decision = job.announced(ticket.problem.identity)
        if decision is not None:
            ticket.decide(decision)
