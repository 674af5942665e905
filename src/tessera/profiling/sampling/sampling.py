"""Sampling: a thread that reads counters and sensors at fixed instants, and what it read as rows of a trace.

with sampling.start(interval_ms=10) as sampled:
    train()
samples = sampled.take()
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.counters import registry
from tessera.profiling.counters.backends.process import PROCESS
from tessera.profiling.counters.interfaces import Capability, Sampler, Subject
from tessera.profiling.sampling.owners import refuse_strangers
from tessera.profiling.sampling.polling import Outcome, Polling
from tessera.profiling.sampling.series import Series
from tessera.profiling.trace.schema import CAPABILITIES, NOT_OF_CPUS
from tessera.system import forks

if TYPE_CHECKING:
    import polars

    from tessera.profiling.sampling.stacks import StackSampling

SHORTEST_MS: Final = 1.0
"""Below it the readings themselves would take more than a tenth of a processor."""


_NO_GPU: Final = "no GPU that has it is here"
_SHORT_MS: Final = 20.0
"""How long the thread may outlive its sampling."""
_ENDED: Final = "the sampling has ended"
_NEVER: Final = 2**63 - 1
_IDLE_SHARE: Final = 200
"""How much longer than a spaced reading took the next one is away at least."""


class Sampling:
    """Samplers that a thread of this process reads every `interval_ms`. Use `with`, or `begin()` and `end()`.

    Deadlines are multiples of the interval from the beginning, so that they do not drift; one that passes while the
    thread cannot run is left out and counted in `missed`.
    """

    def __init__(
        self,
        samplers: Iterable[tuple[str, Sampler]],
        interval_ms: float,
        *,
        capability: dict[str, str] | None = None,
        stacks: StackSampling | None = None,
    ) -> None:
        if not interval_ms >= SHORTEST_MS:
            raise ArgumentError(
                f"sample_interval_ms={interval_ms:g}: at least {SHORTEST_MS:g} ms is meant",
                hints=["5 to 10 ms costs next to nothing"],
            )
        self.interval_ms = interval_ms
        self._missed = 0
        self._ticks = 0
        self.cpu_s: float | None = None
        """Processor time of the thread in seconds, once the sampling has ended."""
        self.capability = dict(capability or {})
        """Why fields are not sampled, by name of the field."""
        self._series = [Series(source, sampler, round(interval_ms * 1e6)) for source, sampler in samplers]
        self._stacks = stacks
        self._lock = forks.lock()
        self._pause = threading.Lock()  # held while the thread runs; wakes it at less cost than an event
        self._ending = False
        self._interval_ns = round(interval_ms * 1e6)
        self._polled = [series for series in self._series if series.polled and self._is_steady(series)]
        self._polling: Polling | None = None
        if self._polled and interval_ms <= _SHORT_MS:
            self._polling = Polling([each for series in self._polled for each in series.polled], self._interval_ns)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.begin()

    def __exit__(self, *exception: object) -> None:
        self.end()

    def begin(self) -> Self:
        """Starts the thread."""
        if self._thread is not None:
            raise ProfileError("this sampling has already begun", hints=["make a new one"])
        self._pause.acquire()
        self._thread = threading.Thread(target=self._run, name="tessera-sampling", daemon=True)
        self._thread.start()
        return self

    def end(self) -> None:
        """Reads a last time, so that the last interval is whole, and closes the samplers. Does nothing twice, and reads
        nothing in a fork of the program. Does not wait for the thread, which ends when it wakes.
        """
        with self._lock:
            if self._ending:
                return
            self._ending = True
            # The thread ends when it has seen `_ending` under the lock, so that it is still there.
            running = self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()
            if running and self._thread is not None and self._thread.ident is not None:
                self.cpu_s = time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))
            if self._polling is not None and self._pid == os.getpid():  # a fork has no thread that could be reading
                self._polling.end()
            self._take_polled()
            for series in self._series:
                if series.ended is None:
                    if running and series.grows:
                        series.read(time.monotonic_ns())
                    series.close(_ENDED)
        if running:
            self._pause.release()
        if self._stacks is not None:
            self._stacks.end()

    @property
    def subject_ended(self) -> bool:
        """Whether the process that is sampled has ended while the sampling was on."""
        return any(series.source == PROCESS and series.ended not in (None, _ENDED) for series in self._series)

    @property
    def ended(self) -> dict[str, str]:
        """Samplers that failed while the sampling was on, by their first field, and why."""
        found = {
            series.fields[0].name: series.ended
            for series in self._series
            if series.ended is not None and series.ended != _ENDED
        }
        if self._stacks is not None and self._stacks.failure is not None:
            found["stack"] = self._stacks.failure
        return found

    @property
    def ticks(self) -> int:
        """Instants at which something was read."""
        return self._ticks + (self._polling.ticks if self._polling is not None else 0)

    @property
    def missed(self) -> int:
        """Instants that passed while the thread could not run."""
        return self._missed + (self._polling.missed if self._polling is not None else 0)

    def _is_steady(self, series: Series) -> bool:
        """Whether it is read at every instant."""
        return series.spacing_ns <= self._interval_ns

    def _take_polled(self) -> None:
        """Hands to the series what native code has read."""
        if self._polling is None:
            return
        times, values = self._polling.take()
        for series in self._polled:
            mine, values = values[:, : len(series.polled)], values[:, len(series.polled) :]
            series.extend(times, mine)

    def _run(self) -> None:
        deadline = time.monotonic_ns()
        if self._polling is not None:
            deadline = self._run_natively(self._polling, deadline)
        self._run_in_python(deadline)

    def _run_natively(self, polling: Polling, first_ns: int) -> int:
        """Has native code read what it can and reads the rest at its time, until the sampling ends, or until something
        that was polled is not there any more. Gives the instant to go on from.
        """
        steady = [series for series in self._series if self._is_steady(series) and series not in self._polled]
        spaced = [series for series in self._series if not self._is_steady(series)]
        polling.begin(first_ns)
        until = spaced_due = first_ns
        while True:
            outcome = polling.run(until)
            with self._lock:
                if self._ending:
                    break
                if outcome in (Outcome.FULL, Outcome.FAILED):
                    self._take_polled()
                if outcome == Outcome.FAILED:
                    break
                if outcome == Outcome.TURN:
                    spaced_due = self._read(steady, spaced, polling.tick_ns, spaced_due)
                    until = polling.deadline_ns if any(series.ended is None for series in steady) else spaced_due
        return polling.deadline_ns

    def _run_in_python(self, deadline: int) -> None:
        steady = [series for series in self._series if self._is_steady(series)]
        spaced = [series for series in self._series if not self._is_steady(series)]
        spaced_due = deadline
        # Sleeping wakes cheaper than a lock does, but cannot be cut short.
        wait = time.sleep if self.interval_ms <= _SHORT_MS else self._wait
        while True:
            with self._lock:
                if self._ending:
                    return
                spaced_due = self._read(steady, spaced, deadline, spaced_due)
                self._ticks += 1
            deadline += self._interval_ns
            late = time.monotonic_ns() - deadline
            if late > 0:
                passed = late // self._interval_ns + 1
                self._missed += passed
                deadline += passed * self._interval_ns
            wait(max(deadline - time.monotonic_ns(), 0) / 1e9)

    def _wait(self, seconds: float) -> None:
        self._pause.acquire(timeout=seconds)

    @staticmethod
    def _read(steady: list[Series], spaced: list[Series], now_ns: int, spaced_due_ns: int) -> int:
        """Reads those whose time has come, and gives when that of the next spaced one comes."""
        for series in steady:
            if series.ended is None:
                series.read(now_ns)
        if now_ns < spaced_due_ns:
            return spaced_due_ns
        for series in spaced:
            if series.ended is None and now_ns >= series.due_ns:
                before = time.monotonic_ns()
                series.read(now_ns)
                # Some cost more the larger the process is: its page tables, its threads.
                series.due_ns = max(series.due_ns, now_ns + (time.monotonic_ns() - before) * _IDLE_SHARE)
        return min((series.due_ns for series in spaced if series.ended is None), default=_NEVER)

    def take(self, zero_ns: int = 0) -> polars.DataFrame:
        """The samples since the last call as rows of a trace (`table.COLUMNS`), by instant. `start_ns` counts from
        `zero_ns` of `time.monotonic_ns`.

        A row's `kernel_name` is the field, `backend` the source. A field that is a column of traces, such as `power_w`,
        stands in that column too; a mask's names stand in it as text.
        """
        from tessera.profiling.sampling import samples

        with self._lock:
            self._take_polled()
            taken = [(series.source, series.fields, *series.take()) for series in self._series]
        found = samples.frame_of(taken, zero_ns)
        return found if self._stacks is None else samples.joined([found, self._stacks.take(zero_ns)])

    def metadata(self) -> dict[str, Any]:
        """What a file says of the sampling, as plain JSON."""
        return {
            "interval_ms": self.interval_ms,
            "spacing_ms": {
                field.name: series.spacing_ns / 1e6
                for series in self._series
                if not self._is_steady(series)
                for field in series.fields
            },
            "ticks": self.ticks,
            "missed": self.missed,
            "cpu_s": self.cpu_s,
            "ended": self.ended,
        }


def start(interval_ms: float = 10.0, *, activities: Iterable[str] | None = None) -> Sampling:
    """Samples this process and its machine from now on, with every backend that one of the activities asks for.

    Raises ArgumentError for an interval below 1 ms. Fields that cannot be read are in `Sampling.capability`.
    """
    return prepared(interval_ms, activities).begin()


def prepared(interval_ms: float, activities: Iterable[str] | None) -> Sampling:
    """As `start`, and waiting for `begin()`: finding out what can be read here takes milliseconds."""
    return _sampling(Subject(), interval_ms, activities)


def sample_process(
    pid: int, *, interval_ms: float = 10.0, activities: Iterable[str] | None = None, stacks: bool = False
) -> Sampling:
    """Samples another process from outside from now on: /proc, perf where it is allowed, GPUs; with `stacks`, its
    Python stacks through py-spy where that is installed.

    Raises ProfileError (E_PROFILE) where there is no such process or it belongs to another user, ArgumentError for an
    interval below 1 ms. `Sampling.subject_ended` says that the process has ended.
    """
    refuse_strangers(pid)
    return _sampling(Subject(pid), interval_ms, activities, stacks=stacks).begin()


def _refusals(capabilities: Mapping[str, Mapping[str, Capability]]) -> dict[str, str]:
    """Why no backend gives a field, by name of the field. Devices that are not here are named where there is no other
    reason, and never for what CPUs could count, too: `schema.CAPABILITIES` says why these do not.
    """
    told = [(backend, *each) for backend, fields in capabilities.items() for each in fields.items()]
    available = {name for _, name, capability in told if capability.available}
    readable = {name for _, name, capability in told if not capability.absent}
    of_cpus = {name for name, why in CAPABILITIES.items() if why != NOT_OF_CPUS}
    reasons: dict[str, list[str]] = {}
    for backend, name, capability in told:
        if not capability.available and not capability.absent and name not in available:
            reasons.setdefault(name, []).append(f"{backend}: {capability}")
    found = {name: " | ".join(each) for name, each in reasons.items()}
    for _, name, capability in told:
        if capability.absent and name not in readable | of_cpus:
            told_before = found.setdefault(name, str(capability))
            found[name] = told_before if told_before == str(capability) else _NO_GPU
    return found


def _sampling(
    subject: Subject, interval_ms: float, activities: Iterable[str] | None, *, stacks: bool = False
) -> Sampling:
    wanted = None if activities is None else tuple(activities)
    refused = _refusals(registry.capabilities(subject, wanted))
    recorder: StackSampling | None = None
    if stacks:
        from tessera.profiling.sampling.stacks import StackSampling, unavailable

        reason = unavailable()
        if reason is None:
            recorder = StackSampling(subject.pid)
        else:
            refused["stack"] = reason
    samplers = registry.open_samplers(subject, wanted)
    try:
        return Sampling(samplers, interval_ms, capability=refused, stacks=recorder)
    except ArgumentError:
        for _, sampler in samplers:
            sampler.close()
        raise
