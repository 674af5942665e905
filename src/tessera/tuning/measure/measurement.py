"""Measurers: from cases to trials. `SubprocessMeasurer` runs them, `ReplayMeasurer` looks them up in a recorded table.

Nothing a candidate does reaches the caller: a crash, a hang, a wrong result and exhausted memory are outcomes of its
trial.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tessera.errors import TuneFailedError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.conditions import Conditions, LaunchMode
from tessera.tuning.measure.forkserver_client import ForkServer, WorkerDiedError, WorkerTimeoutError
from tessera.tuning.measure.protocol import (
    CandidateCheck,
    Load,
    Prepare,
    Reply,
    Request,
    Sample,
    TakeSample,
    Unload,
    Verify,
    pack_request,
    read_reply,
)
from tessera.tuning.measure.trial import Outcome, Timing, Trial, drift
from tessera.tuning.measure.workload import Case, Workload

WORKER = "tessera.tuning.measure.worker"

START_LIMIT_S = 120.0
"""Seconds for a worker to start and make its operands: it imports torch, on a machine that may be busy."""


@dataclass(frozen=True)
class Effort:
    """How much is spent on timing.

    `rounds` over all candidates, `sample_s` seconds a sample; a candidate that lags behind the best by a factor of more
    than `lag` after two rounds, or that has taken `limit_s` seconds in two samples or more, is timed no further.

    All candidates are timed in turn (A B C A B C ...), or, `one_by_one`, each in turn with the first (A, A B A B ...,
    A C A C ...): then a trial is complete before the next begins.
    """

    rounds: int
    sample_s: float
    lag: float
    limit_s: float
    one_by_one: bool = False


SCREEN = Effort(rounds=5, sample_s=2e-3, lag=1.3, limit_s=0.2, one_by_one=True)
FINAL = Effort(rounds=15, sample_s=5e-3, lag=1.5, limit_s=1.0)
"""Leaders are timed to the end, the default above all: two samples, slow by chance, would decide against it."""

Done: TypeAlias = Callable[[Trial], None]
"""Called with each trial as soon as it is complete; a later one of the same schedule takes its place."""

_EXTRA_ROUNDS = 2
"""Contended samples are taken again, in at most this many times as many rounds."""

_LEAST_ROUNDS = 2

_ENOUGH = 3
"""With fewer uncontended samples than this the contended ones count as well."""

_ATTEMPTS = 2
"""A candidate beside which the first one fails is measured again in a fresh worker: either may be to blame."""


def unheard(trial: Trial) -> None:
    """A `Done` for callers that wait for the list."""


class Measurer(Protocol):
    """Times candidates of one problem against each other."""

    def measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort, done: Done = unheard) -> list[Trial]:
        """A trial for each case, in order. Times within one call are comparable, those of two calls less so."""
        ...


class ReplayMeasurer:
    """A recorded table as a measurer: search is tested with it, without a device. Cases may be anything.

    A schedule that the table lacks gets the outcome "compile_error". `asked` lists the schedules in the order they
    were asked for.
    """

    def __init__(self, table: Mapping[Schedule, Timing | Outcome]) -> None:
        self._table = dict(table)
        self.asked: list[Schedule] = []

    def measure(self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard) -> list[Trial]:
        """The recorded trial of each schedule; `effort` makes no difference."""
        trials = []
        for schedule, _ in cases:
            self.asked.append(schedule)
            trials.append(self._trial(schedule))
            done(trials[-1])
        return trials

    def _trial(self, schedule: Schedule) -> Trial:
        found = self._table.get(schedule)
        if found is None:
            return Trial(schedule, "compile_error", detail="not in the recorded table")
        return Trial(schedule, "ok", found) if isinstance(found, Timing) else Trial(schedule, found)


@dataclass
class _Running:
    """A candidate on its way: `generation` is the state of the worker that it was last loaded into, `failure` why it is
    timed no more; `scale` makes its times comparable with those of other pairs.
    """

    number: int
    schedule: Schedule
    case: Case
    generation: int = 0
    clean: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    launch: LaunchMode = "call"
    failure: CandidateCheck | None = None
    scale: float = 1.0
    was_retried: bool = False

    def stands(self) -> bool:
        return self.failure is None

    @property
    def best(self) -> float:
        return min((*self.clean, *self.disturbed), default=float("inf"))

    def afresh(self) -> _Running:
        """The same candidate, still loaded where it is, without samples."""
        return _Running(self.number, self.schedule, self.case, self.generation)

    def timing(self) -> Timing:
        taken = len(self.clean) + len(self.disturbed)
        if len(self.clean) >= min(_ENOUGH, taken):
            return Timing.of(self.clean, taken)
        return Timing.of([*self.clean, *self.disturbed], taken, contended=True)

    def trial(self) -> Trial:
        if self.failure is not None:
            return Trial(self.schedule, self.failure.outcome, detail=self.failure.detail)
        conditions = Conditions(self.case.workload.cache, self.launch)
        return Trial(self.schedule, "ok", self.timing().scaled(self.scale), conditions=conditions)


class SubprocessMeasurer:
    """Measures in a worker process: started at the first use, replaced when a candidate breaks it, ended by `close`.

    `time_limit_s` bounds a candidate's first run and each of its samples; the workload's limit does where it is longer.
    `worker` is the module that the worker runs, `niceness` its priority. `before` is called before every request to it,
    `observe` is told of every sample. Not for several threads at once, but for `abort`.
    """

    def __init__(
        self,
        time_limit_s: float = 0.0,
        worker: str = WORKER,
        observe: Callable[[Schedule, Sample], None] = lambda schedule, sample: None,
        *,
        niceness: int = 0,
        before: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self._time_limit_s = time_limit_s
        self._module, self._niceness = worker, niceness
        self._observe, self._before = observe, before
        self._server: ForkServer | None = None
        self._prepared: str | None = None
        self._numbers = itertools.count()
        self._visitors: set[int] = set()
        self._generation = 0
        self._finalizer: weakref.finalize[[], SubprocessMeasurer] | None = None

    def start(self) -> None:
        """Starts the worker, without waiting for it: it is ready once candidates are compiled. Raises E_TUNE_FAILED."""
        if self._server is None or not self._server.alive:
            self.close()
            self._server = ForkServer(self._module, niceness=self._niceness)
            self._finalizer = weakref.finalize(self, self._server.close)

    def measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort, done: Done = unheard) -> list[Trial]:
        """Loads and checks every case, then times those that are right: see `Effort`."""
        running = [_Running(next(self._numbers), schedule, case) for schedule, case in cases]
        trials: dict[int, Trial] = {}

        def tell(candidate: _Running) -> None:
            trials[candidate.number] = candidate.trial()
            done(trials[candidate.number])

        try:
            if self._server is not None and self._server.channels[0].lost():
                self._prepared = None  # killed while it had nothing to do: no candidate is to blame
            (self._one_by_one if effort.one_by_one else self._together)(running, effort, tell)
            if self._prepared is not None:
                self._ask(Unload(), START_LIMIT_S)
                self._generation += 1
        except BaseException:
            # An answer may still be on its way (the user pressed Ctrl-C): a fresh worker cannot mistake it for another.
            self.close()
            raise
        return [trials[candidate.number] for candidate in running]

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker's server, None while there is none."""
        return self._server.pid if self._server is not None else None

    def abort(self) -> None:
        """Ends what the worker is doing, which then has failed, from another thread."""
        if self._server is not None:
            self._server.abort()

    def close(self) -> None:
        """Ends the worker; the next measurement starts another."""
        if self._finalizer is not None:
            self._finalizer()
        self._server = self._prepared = self._finalizer = None

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _together(self, running: Sequence[_Running], effort: Effort, tell: Callable[[_Running], None]) -> None:
        """Times all candidates in turn, and looks at their results once more: one may be wrong now and then."""
        for candidate in running:
            candidate.failure = self._ensure_loaded(candidate)
        self._time(running, effort)
        for candidate in running:
            candidate.failure = candidate.failure or self._verify(candidate)
            tell(candidate)

    def _one_by_one(self, running: Sequence[_Running], effort: Effort, tell: Callable[[_Running], None]) -> None:
        """Times each candidate in turn with the first that runs, and tells it before the next is loaded."""
        first: _Running | None = None
        for candidate in running:
            if first is None:
                candidate.failure = self._ensure_loaded(candidate)
                self._time([candidate], effort)
                first = candidate if candidate.failure is None else None
                tell(candidate)
            else:
                tell(self._beside(first, candidate, effort))

    def _beside(self, first: _Running, candidate: _Running, effort: Effort) -> _Running:
        """The candidate, timed in turn with `first`, its times as if both had been timed when `first` was.

        `first` ran before: where it fails now, and again in a fresh worker, then what the candidate writes did it.
        """
        for _ in range(_ATTEMPTS):
            timed, beside = candidate.afresh(), first.afresh()
            timed.failure = self._ensure_loaded(timed)
            if not timed.stands():
                return timed
            beside.failure = self._ensure_loaded(beside)
            self._time([beside, timed], effort)
            first.generation = beside.generation
            if timed.stands() and beside.stands():
                timed.scale = 1.0 / drift(first.timing(), beside.timing())
            if not timed.stands() or beside.stands():
                return timed
            if self._prepared is not None:  # else the process is gone already
                self._renew()
        broken = beside.trial()
        why = f"a kernel that was right is so no more beside it: {broken.outcome}, {broken.detail}"
        timed.failure = CandidateCheck("wrong", why)
        return timed

    def _time(self, rivals: Sequence[_Running], effort: Effort) -> None:
        """Takes samples of the rivals in turn, until the last one, or all of those timed together, need no more."""
        for round_number in range(effort.rounds * _EXTRA_ROUNDS):
            due = _due(rivals, round_number, effort)
            if not due or (effort.one_by_one and due[-1] is not rivals[-1]):
                return
            for candidate in due:
                candidate.failure = self._sample(candidate, effort)

    def _sample(self, candidate: _Running, effort: Effort) -> CandidateCheck | None:
        """Adds a sample to the candidate's; its failure if it has become one."""
        failure = self._ensure_loaded(candidate)
        if failure is not None:
            return failure
        reply = self._attempt(candidate, TakeSample(candidate.number, effort.sample_s))
        if isinstance(reply, CandidateCheck):
            return reply
        assert isinstance(reply, Sample)
        self._observe(candidate.schedule, reply)
        candidate.spent_s += reply.seconds * reply.calls
        candidate.launch = reply.launch
        (candidate.disturbed if reply.contended else candidate.clean).append(reply.seconds)
        return None

    def _verify(self, candidate: _Running) -> CandidateCheck | None:
        failure = self._ensure_loaded(candidate)
        reply = failure or self._ask(Verify(candidate.number), self._limit(candidate.case))
        assert isinstance(reply, CandidateCheck)
        return None if reply.outcome == "ok" else reply

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _ensure_loaded(self, candidate: _Running) -> CandidateCheck | None:
        """Loads the candidate unless the worker has it (another candidate may have broken the worker since); its
        failure.
        """
        self._ensure_prepared(candidate.case.workload)
        if candidate.generation == self._generation:
            return None
        reply = self._attempt(candidate, Load(candidate.number, candidate.case.launches, candidate.case.temporaries))
        assert isinstance(reply, CandidateCheck)
        candidate.generation = self._generation
        self._visitors.add(candidate.number)
        return None if reply.outcome == "ok" else reply

    def _attempt(self, candidate: _Running, request: Load | TakeSample) -> Reply:
        """The worker's reply. A crash where other candidates ran before may be their doing: once, it is tried again in
        a fresh process.
        """
        crowded = bool(self._visitors - {candidate.number})
        reply = self._ask(request, self._limit(candidate.case))
        if not crowded or candidate.was_retried or not isinstance(reply, CandidateCheck) or reply.outcome != "crashed":
            return reply
        candidate.was_retried = True
        if isinstance(request, TakeSample):
            return self._ensure_loaded(candidate) or self._ask(request, self._limit(candidate.case))
        self._ensure_prepared(candidate.case.workload)
        return self._ask(request, self._limit(candidate.case))

    def _ensure_prepared(self, workload: Workload) -> None:
        if self._prepared == workload.key:
            return
        reply = self._prepare(workload)
        if isinstance(reply, CandidateCheck) and reply.outcome != "timeout":
            # No candidate runs yet: somebody else ended the process, or memory was short for a moment. Once more.
            reply = self._prepare(workload)
        if isinstance(reply, CandidateCheck):
            raise TuneFailedError(f"the measuring process could not make the operands: {reply.outcome}, {reply.detail}")
        self._prepared = workload.key
        self._generation += 1

    def _prepare(self, workload: Workload) -> Reply:
        self.start()
        return self._ask(Prepare(workload), START_LIMIT_S)

    def _ask(self, request: Request, limit_s: float) -> Reply:
        """The worker's reply; `CandidateCheck` with a failed outcome if the worker did not survive the request."""
        assert self._server is not None
        self._before(request)
        try:
            return read_reply(self._server.channels[0].ask(pack_request(request), limit_s))
        except WorkerTimeoutError:
            failure = CandidateCheck("timeout", f"no answer within {limit_s:g} s")
        except WorkerDiedError as death:
            # Nobody but the kernel's out-of-memory killer sends SIGKILL to a worker of ours.
            memory = death.signal_name == "SIGKILL"
            failure = CandidateCheck("out_of_memory" if memory else "crashed", str(death))
        except ValueError as nonsense:
            failure = CandidateCheck("crashed", str(nonsense))
            self._renew()
        self._prepared = None
        self._visitors.clear()
        return failure

    def _renew(self) -> None:
        """Has another process answer the next request."""
        if self._server is not None and self._server.alive:
            self._server.channels[0].renew()
        self._prepared = None
        self._visitors.clear()

    def _limit(self, case: Case) -> float:
        return max(self._time_limit_s, case.workload.time_limit_s)


def _due(rivals: Sequence[_Running], round_number: int, effort: Effort) -> list[_Running]:
    """The candidates to time in this round."""
    standing = [candidate for candidate in rivals if candidate.stands()]
    if round_number < _LEAST_ROUNDS:
        return standing
    best = min((candidate.best for candidate in standing), default=0.0)
    return [
        candidate
        for candidate in standing
        if len(candidate.clean) < effort.rounds
        and candidate.best <= effort.lag * best
        and candidate.spent_s < effort.limit_s
    ]
