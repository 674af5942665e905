"""Measurers: from cases to trials. `SubprocessMeasurer` runs them, `ReplayMeasurer` looks them up in a recorded table.

Nothing a candidate does reaches the caller: a crash, a hang, a wrong result and exhausted memory are outcomes of its
trial.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tessera.errors import TuneFailedError
from tessera.scheduling.schedule import Schedule
from tessera.tuning.process import WORKER, WorkerDiedError, WorkerProcess, WorkerTimeoutError
from tessera.tuning.protocol import Load, Loaded, Prepare, Reply, Request, Sample, TakeSample, Unload
from tessera.tuning.trial import Outcome, Timing, Trial
from tessera.tuning.workload import Case, Workload

START_LIMIT_S = 120.0
"""Seconds for a worker to start and make its operands: it imports torch, on a machine that may be busy."""


@dataclass(frozen=True)
class Effort:
    """How much is spent on timing.

    `rounds` over all candidates, `sample_s` seconds a sample; a candidate that lags behind the best by a factor of more
    than `lag` after two rounds, or that has taken `limit_s` seconds in two samples or more, is timed no further.
    """

    rounds: int
    sample_s: float
    lag: float
    limit_s: float


SCREEN = Effort(rounds=5, sample_s=2e-3, lag=1.3, limit_s=0.2)
FINAL = Effort(rounds=15, sample_s=5e-3, lag=1.15, limit_s=1.0)

_EXTRA_ROUNDS = 2
"""Contended samples are taken again, in at most this many times as many rounds."""

_LEAST_ROUNDS = 2

_ENOUGH = 3
"""With fewer uncontended samples than this the contended ones count as well."""


class Measurer(Protocol):
    """Times candidates of one problem against each other."""

    def measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort) -> list[Trial]:
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

    def measure(self, cases: Sequence[tuple[Schedule, object]], effort: Effort) -> list[Trial]:
        """The recorded trial of each schedule; `effort` makes no difference."""
        self.asked += [schedule for schedule, _ in cases]
        return [self._trial(schedule) for schedule, _ in cases]

    def _trial(self, schedule: Schedule) -> Trial:
        found = self._table.get(schedule)
        if found is None:
            return Trial(schedule, "compile_error", detail="not in the recorded table")
        return Trial(schedule, "ok", found) if isinstance(found, Timing) else Trial(schedule, found)


@dataclass
class _Running:
    """A candidate on its way: `generation` is the state of the worker that it was last loaded into."""

    number: int
    schedule: Schedule
    case: Case
    generation: int = 0
    clean: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    spent_s: float = 0.0

    @property
    def best(self) -> float:
        return min((*self.clean, *self.disturbed), default=float("inf"))

    def timing(self) -> Timing:
        taken = len(self.clean) + len(self.disturbed)
        if len(self.clean) >= min(_ENOUGH, taken):
            return Timing.of(self.clean, taken)
        return Timing.of([*self.clean, *self.disturbed], taken, contended=True)


class SubprocessMeasurer:
    """Measures in a worker process: started at the first use, replaced when a candidate breaks it, ended by `close`.

    `time_limit_s` bounds a candidate's first run and each of its samples; the workload's limit does where it is longer.
    `worker` is the module that the worker runs. Not for several threads at once.
    """

    def __init__(self, time_limit_s: float = 0.0, worker: str = WORKER) -> None:
        self._time_limit_s = time_limit_s
        self._module = worker
        self._worker: WorkerProcess | None = None
        self._prepared: str | None = None
        self._generation = 0
        self._finalizer: weakref.finalize[[], SubprocessMeasurer] | None = None

    def measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort) -> list[Trial]:
        """Loads and checks every case, then times those that are right in interleaved rounds."""
        try:
            return self._measure(cases, effort)
        except BaseException:
            # An answer may still be on its way (the user pressed Ctrl-C): a fresh worker cannot mistake it for another.
            self.close()
            raise

    def _measure(self, cases: Sequence[tuple[Schedule, Case]], effort: Effort) -> list[Trial]:
        if self._worker is not None and not self._worker.alive:
            self.close()  # it was killed while it had nothing to do: no candidate is to blame
        trials: dict[int, Trial] = {}
        running = [_Running(number, schedule, case) for number, (schedule, case) in enumerate(cases)]
        for candidate in tuple(running):
            self._drop_failed(candidate, self._ensure_loaded(candidate), running, trials)
        for round_number in range(effort.rounds * _EXTRA_ROUNDS):
            for candidate in _due(running, round_number, effort):
                self._drop_failed(candidate, self._sample(candidate, effort), running, trials)
        for candidate in running:
            trials[candidate.number] = Trial(candidate.schedule, "ok", candidate.timing())
        if self._worker is not None:
            self._ask(Unload(), START_LIMIT_S)
            self._generation += 1
        return [trials[number] for number in range(len(cases))]

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, None while there is none."""
        return self._worker.pid if self._worker is not None else None

    def close(self) -> None:
        """Ends the worker; the next measurement starts another."""
        if self._finalizer is not None:
            self._finalizer()
        self._worker = self._prepared = self._finalizer = None

    def _drop_failed(
        self, candidate: _Running, failure: Loaded | None, running: list[_Running], trials: dict[int, Trial]
    ) -> None:
        if failure is not None:
            running.remove(candidate)
            trials[candidate.number] = Trial(candidate.schedule, failure.outcome, detail=failure.detail)

    def _sample(self, candidate: _Running, effort: Effort) -> Loaded | None:
        """Adds a sample to the candidate's; its failure if it has become one."""
        failure = self._ensure_loaded(candidate)
        if failure is not None:
            return failure
        reply = self._ask(TakeSample(candidate.number, effort.sample_s), self._limit(candidate.case))
        if isinstance(reply, Loaded):
            return reply
        assert isinstance(reply, Sample)
        candidate.spent_s += reply.seconds * reply.calls
        (candidate.disturbed if reply.contended else candidate.clean).append(reply.seconds)
        return None

    def _ensure_loaded(self, candidate: _Running) -> Loaded | None:
        """Loads the candidate unless the worker has it (another candidate may have broken the worker since); its
        failure.
        """
        self._ensure_prepared(candidate.case.workload)
        if candidate.generation == self._generation:
            return None
        request = Load(candidate.number, candidate.case.launches, candidate.case.temporaries)
        reply = self._ask(request, self._limit(candidate.case))
        assert isinstance(reply, Loaded)
        candidate.generation = self._generation
        return None if reply.outcome == "ok" else reply

    def _ensure_prepared(self, workload: Workload) -> None:
        if self._worker is not None and self._prepared == workload.key:
            return
        reply = self._prepare(workload)
        if isinstance(reply, Loaded) and reply.outcome != "timeout":
            # No candidate runs yet: somebody else ended the process, or memory was short for a moment. Once more.
            reply = self._prepare(workload)
        if isinstance(reply, Loaded):
            raise TuneFailedError(f"the measuring process could not make the operands: {reply.outcome}, {reply.detail}")
        self._prepared = workload.key
        self._generation += 1

    def _prepare(self, workload: Workload) -> Reply:
        if self._worker is None:
            self._worker = WorkerProcess(self._module)
            self._finalizer = weakref.finalize(self, self._worker.kill)
        return self._ask(Prepare(workload), START_LIMIT_S)

    def _ask(self, request: Request, limit_s: float) -> Reply:
        """The worker's reply; `Loaded` with a failed outcome if the worker did not survive the request."""
        assert self._worker is not None
        try:
            return self._worker.ask(request, limit_s)
        except WorkerTimeoutError:
            failure = Loaded("timeout", f"no answer within {limit_s:g} s")
        except WorkerDiedError as death:
            # Nobody but the kernel's out-of-memory killer sends SIGKILL to a worker of ours.
            memory = death.signal_name == "SIGKILL"
            failure = Loaded("out_of_memory" if memory else "crashed", str(death))
        self.close()
        return failure

    def _limit(self, case: Case) -> float:
        return max(self._time_limit_s, case.workload.time_limit_s)


def _due(running: list[_Running], round_number: int, effort: Effort) -> list[_Running]:
    """The candidates to time in this round."""
    if round_number < _LEAST_ROUNDS:
        return list(running)
    best = min((candidate.best for candidate in running), default=0.0)
    return [
        candidate
        for candidate in running
        if len(candidate.clean) < effort.rounds
        and candidate.best <= effort.lag * best
        and candidate.spent_s < effort.limit_s
    ]
