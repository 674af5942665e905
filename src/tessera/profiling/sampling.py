"""Sampling: a thread that reads counters and sensors at fixed instants, and what it read as rows of a trace.

with sampling.start(interval_ms=10) as sampled:
    train()
samples = sampled.take()
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import numpy
from numpy.typing import NDArray

from tessera import forks
from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.counters import registry
from tessera.profiling.counters.backends.process import PROCESS
from tessera.profiling.counters.interfaces import Capability, Sampler, Subject
from tessera.profiling.owners import refuse_strangers
from tessera.profiling.schema import CAPABILITIES, NOT_OF_CPUS

if TYPE_CHECKING:
    import polars

    from tessera.profiling.stacks import StackSampling

SHORTEST_MS: Final = 1.0
"""Below it the readings themselves would take more than a tenth of a processor."""


_NO_GPU: Final = "no GPU that has it is here"
_SHORT_MS: Final = 20.0
"""How long the thread may outlive its sampling."""
_ENDED: Final = "the sampling has ended"
_IDLE_SHARE: Final = 200
"""How much longer than a spaced reading took the next one is away at least."""


class Series:
    """What one sampler has read and nobody has taken: instants, and values row by row. The sampling thread appends."""

    def __init__(self, source: str, sampler: Sampler) -> None:
        self.source = source
        self.fields = tuple(sampler.fields)
        self.spacing_ns = int(sampler.min_interval_ms * 1e6)
        self.grows = any(field.cumulative for field in self.fields)
        self.due_ns = 0
        self.ended: str | None = None
        self._sampler = sampler
        self._times = array("q")
        self._values = array("d")
        self._tail: tuple[NDArray[numpy.int64], NDArray[numpy.float64]] | None = None

    def read(self, now_ns: int) -> None:
        """Reads once; after a failure, never again."""
        try:
            values = self._sampler.read()
        except OSError as error:
            self.close(str(error) or type(error).__name__)
            return
        self._times.append(time.monotonic_ns())
        self._values.extend(values)
        self.due_ns = now_ns + self.spacing_ns

    def close(self, reason: str) -> None:
        """Ends it. What was read stays."""
        if self.ended is None:
            self.ended = reason
            self._sampler.close()

    def take(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.float64]]:
        """Instants, and a column of samples for each field, in its unit; NaN where there is none. Cumulative fields
        have none at the first instant of all.
        """
        times, flat = numpy.frombuffer(self._times, numpy.int64), numpy.frombuffer(self._values, numpy.float64)
        # A fork may have caught the thread between an instant and its values.
        times = times[: len(flat) // len(self.fields)]
        values = flat.reshape(-1, len(self.fields))[: len(times)]
        self._times, self._values = array("q"), array("d")
        if not len(times):
            return times, values
        before = self._tail
        self._tail = times[-1:], values[-1:]
        cumulative = numpy.array([each.cumulative for each in self.fields])
        samples = values * numpy.array([each.scale for each in self.fields])
        if cumulative.any():
            scales = numpy.array([each.scale for each in self.fields])[cumulative]
            samples[:, cumulative] = _rates(times, values[:, cumulative], before, cumulative) * scales
        return times, samples


def _rates(
    times: NDArray[numpy.int64],
    values: NDArray[numpy.float64],
    before: tuple[NDArray[numpy.int64], NDArray[numpy.float64]] | None,
    columns: NDArray[numpy.bool_],
) -> NDArray[numpy.float64]:
    """Growth per second since the instant before; NaN where there was none, or a count began anew."""
    first_time = before[0] if before else times[:1]
    first_value = before[1][:, columns] if before else numpy.full((1, values.shape[1]), numpy.nan)
    seconds = numpy.maximum(numpy.diff(times, prepend=first_time), 1) / 1e9
    growth = numpy.diff(values, axis=0, prepend=first_value)
    return numpy.where(growth >= 0, growth, numpy.nan) / seconds[:, None]


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
        self.missed = 0
        self.ticks = 0
        self.cpu_s: float | None = None
        """Processor time of the thread in seconds, once the sampling has ended."""
        self.capability = dict(capability or {})
        """Why fields are not sampled, by name of the field."""
        self._series = [Series(source, sampler) for source, sampler in samplers]
        self._stacks = stacks
        self._lock = forks.lock()
        self._pause = threading.Lock()  # held while the thread runs; wakes it at less cost than an event
        self._ending = False
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

    def _run(self) -> None:
        interval = round(self.interval_ms * 1e6)
        deadline = time.monotonic_ns()
        steady = [series for series in self._series if series.spacing_ns <= interval]
        spaced = [series for series in self._series if series.spacing_ns > interval]
        spaced_due = deadline
        # Sleeping wakes cheaper than a lock does, but cannot be cut short.
        wait = time.sleep if self.interval_ms <= _SHORT_MS else self._wait
        while True:
            with self._lock:
                if self._ending:
                    return
                for series in steady:
                    if series.ended is None:
                        series.read(deadline)
                if deadline >= spaced_due:
                    spaced_due = self._read_spaced(spaced, deadline)
                self.ticks += 1
            deadline += interval
            late = time.monotonic_ns() - deadline
            if late > 0:
                passed = late // interval + 1
                self.missed += passed
                deadline += passed * interval
            wait(max(deadline - time.monotonic_ns(), 0) / 1e9)

    def _wait(self, seconds: float) -> None:
        self._pause.acquire(timeout=seconds)

    @staticmethod
    def _read_spaced(spaced: list[Series], now_ns: int) -> int:
        """Reads those whose time has come, and gives when that of the next one comes."""
        for series in spaced:
            if series.ended is None and now_ns >= series.due_ns:
                before = time.monotonic_ns()
                series.read(now_ns)
                # Some cost more the larger the process is: its page tables, its threads.
                series.due_ns = max(series.due_ns, now_ns + (time.monotonic_ns() - before) * _IDLE_SHARE)
        return min((series.due_ns for series in spaced if series.ended is None), default=2**63)

    def take(self, zero_ns: int = 0) -> polars.DataFrame:
        """The samples since the last call as rows of a trace (`table.COLUMNS`), by instant. `start_ns` counts from
        `zero_ns` of `time.monotonic_ns`.

        A row's `kernel_name` is the field, `backend` the source. A field that is a column of traces, such as `power_w`,
        stands in that column too; a mask's names stand in it as text.
        """
        from tessera.profiling import samples

        with self._lock:
            taken = [(series.source, series.fields, *series.take()) for series in self._series]
        found = samples.frame_of(taken, zero_ns)
        return found if self._stacks is None else samples.joined([found, self._stacks.take(zero_ns)])

    def metadata(self) -> dict[str, Any]:
        """What a file says of the sampling, as plain JSON."""
        return {
            "interval_ms": self.interval_ms,
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
        from tessera.profiling.stacks import StackSampling, unavailable

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
