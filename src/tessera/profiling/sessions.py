"""Profile sessions: what runs between the beginning and the end of a `with session()` block, from every thread.

Sessions may be nested and may overlap; each sees what ran while it was on. The native ring is drained into all active
sessions at the boundaries of sessions and regions and whenever someone reads an active session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import numpy
from numpy.typing import NDArray

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling import copies, facts, recorder, tracks
from tessera.profiling.copies import CopyEvent
from tessera.profiling.issued import IssuedWork, Moment, region_names
from tessera.profiling.pending import PendingResults
from tessera.profiling.recorder import Drained
from tessera.profiling.regions import RegionEvent
from tessera.profiling.schema import CAPABILITIES, RECORD_FIELDS, RECORD_WORDS, Record, StepFacts
from tessera.profiling.tracks import Service

ACTIVITIES: Final = {
    "cpu": None,
    "gpu": "durations of kernels on GPUs are not measured yet: what was launched there is counted",
    "memcpy": None,
    "collective": "this process takes part in no collectives",
    "power": "power and temperature are not read on CPUs",
}
"""What can be asked for, and why what is not recorded is not."""

_lock = threading.RLock()
_active: list[Session] = []
_pending = PendingResults()
_last: Session | None = None

_START: Final = RECORD_FIELDS.index("start")
_END: Final = RECORD_FIELDS.index("end")
_PLAN: Final = RECORD_FIELDS.index("plan")
_STEP: Final = RECORD_FIELDS.index("step")
_WORKERS: Final = RECORD_FIELDS.index("workers")
_THREAD: Final = RECORD_FIELDS.index("thread")


class Exporter(Protocol):
    """Writes a session to a file; `profile.chrome(...)` and `profile.summary(...)` make them."""

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""


class Session:
    """What one session recorded. Made by `session(...)`; use it as a context manager, once.

    An `observer` is a session that somebody outside the program began. It changes nothing that the program does: no
    results are kept or evaluated for it, and the program's `current()` passes it over.
    """

    def __init__(
        self,
        activities: Sequence[str],
        record_shapes: bool,
        exporters: Sequence[Exporter],
        *,
        observer: bool = False,
    ) -> None:
        self.observer = observer
        self.activities = tuple(activities)
        self.capability = {name: reason for name in activities if (reason := ACTIVITIES[name]) is not None}
        self.start_ns = 0
        self.end_ns: int | None = None
        self.launched = 0
        self.overwritten = 0
        self.unfinished = 0
        self.unmeasured: dict[str, int] = {}
        self.regions: list[RegionEvent] = []
        self.marks: list[tuple[int, str, int]] = []  # (time, name, thread)
        self.counters: list[tuple[int, str, float, str]] = []  # (time, name, value, unit)
        self.copies: list[CopyEvent] = []
        self.issued: list[IssuedWork] = []
        self.thread_names: dict[int, str] = {}
        """The names of threads whose work is recorded, also of those that have ended since."""
        self._services: dict[int, list[Service]] | None = None
        self._exporters = tuple(exporters)
        self._record_shapes = record_shapes
        self._batches: list[NDArray[numpy.int64]] = []
        self._facts: dict[int, Sequence[StepFacts]] = {}
        self.plans: dict[int, facts.Expression] = {}
        """What the plans that ran compute, by number, once the session has ended."""

    def __enter__(self) -> Self:
        if self.start_ns:
            raise ProfileError("this session has already run", hints=["make a new one with profile.session()"])
        _begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error of the user's, pending results are left alone: computing them could hide that error.
        _end(self, flush_results=kind is None and not self.observer)
        if kind is None:
            for exporter in self._exporters:
                exporter.export(self)

    @property
    def recorded(self) -> int:
        """Native records that the session holds."""
        return sum(len(batch) for batch in self._batches)

    @property
    def dropped(self) -> int:
        """Kernels that ran and are not among the records; `launched == recorded + dropped`. Those of GPUs are among
        them: `unmeasured` counts them by device.
        """
        return self.overwritten + self.unfinished + sum(self.unmeasured.values())

    @property
    def active(self) -> bool:
        """Whether the session is on."""
        return bool(self.start_ns) and self.end_ns is None

    def mark(self, name: str) -> None:
        """Notes an instant. Results made so far by this thread are evaluated first, so that they lie before it."""
        if not self.active:
            raise ProfileError(f"mark {name!r}: the session is not on", hints=["call mark inside the with block"])
        flush()
        self.marks.append((time.monotonic_ns(), name, threading.get_ident()))

    def kernel_rows(self) -> NDArray[numpy.int64]:
        """The native records in order of their start; columns as in `schema.RECORD_FIELDS`, times in nanoseconds of
        `time.monotonic_ns`.
        """
        if self.active:
            collect()
        rows = self._rows()
        ordered: NDArray[numpy.int64] = rows[numpy.argsort(rows[:, _START], kind="stable")]
        return ordered

    def _rows(self) -> NDArray[numpy.int64]:
        return numpy.concatenate([numpy.empty((0, RECORD_WORDS), numpy.int64), *self._batches])

    def take_rows(self) -> NDArray[numpy.int64]:
        """The native records since the last call, which the session then holds no more."""
        with _lock:
            rows = self._rows()
            self._batches.clear()
            return rows

    def adopt(
        self,
        batches: Sequence[NDArray[numpy.int64]],
        steps: Mapping[int, Sequence[StepFacts]],
        plans: Mapping[int, facts.Expression],
        services: Mapping[int, list[Service]],
    ) -> None:
        """Takes over what a session of another process recorded: native records, the facts of its plans, what they
        compute, and what its threads did.
        """
        self._batches.extend(batches)
        self._facts.update(steps)
        self.plans.update(plans)
        self._services = dict(services)

    def plan_facts(self, plan_id: int) -> Sequence[StepFacts]:
        """What the compiler said about all steps of a plan."""
        steps = self._facts.get(plan_id)
        if steps is None:
            steps = self._facts[plan_id] = facts.of_plan(plan_id)
        return steps

    def step_facts(self, plan_id: int, step_id: int) -> StepFacts:
        """What the compiler said about a step."""
        return facts.choose(self.plan_facts(plan_id), plan_id, step_id)

    def records(self) -> list[Record]:
        """All events in order of their start: kernels, copies, regions, marks and counters, in the portable schema."""
        made = list(self.copies)
        names = self._region_names((each.thread, each.start_ns) for each in made)
        copied = copies.records(made, names, self._known_services(), self._us)
        events = [*self._kernel_records(), *copied, *self._region_records(), *self._instant_records()]
        return sorted(events, key=lambda record: (record.start_us, -record.end_us))

    def report(self) -> None:
        """Prints one row per operator: latency, work, bandwidth, and efficiency against the measured ceilings."""
        from tessera.profiling.report import print_report

        print_report(self)

    def _us(self, instant_ns: int) -> float:
        return (instant_ns - self.start_ns) / 1000

    def _kernel_records(self) -> Iterable[Record]:
        rows = self.kernel_rows()
        names = self._region_names(rows[:, [_THREAD, _START]].tolist())
        services = self._known_services()
        for row, name in zip(rows.tolist(), names, strict=True):
            known = self.step_facts(row[_PLAN], row[_STEP])
            track = tracks.track_at(services, row[_THREAD], row[_START])
            yield Record(
                kind="kernel",
                kernel_name=known.kernel_name,
                stream_id=track.stream_id,
                stream_name=track.name,
                start_us=self._us(row[_START]),
                end_us=self._us(row[_END]),
                thread_id=row[_THREAD],
                region=name,
                operator=known.operator,
                workers=row[_WORKERS],
                plan_id=row[_PLAN],
                step_id=row[_STEP],
                flops=known.flops,
                bytes=known.bytes,
                dtype=known.dtype,
                schedule=known.schedule,
                fused=known.fused,
                shapes=known.shapes if self._record_shapes else (),
                backend=known.backend,
                capability=CAPABILITIES,
            )

    def _known_services(self) -> dict[int, list[Service]]:
        return tracks.known() if self._services is None else self._services

    def _region_names(self, begun: Iterable[tuple[int, int]]) -> list[str]:
        """By thread and instant at which something began."""
        return region_names(self.regions, list(self.issued), [Moment(*each) for each in begun])

    def _region_records(self) -> Iterable[Record]:
        for each in self.regions:
            yield Record(
                kind="region",
                kernel_name=each.name,
                stream_id=0,
                start_us=self._us(each.start_ns),
                end_us=self._us(each.end_ns),
                thread_id=each.thread,
            )

    def _instant_records(self) -> Iterable[Record]:
        for instant, name, thread in self.marks:
            at = self._us(instant)
            yield Record(kind="mark", kernel_name=name, stream_id=0, start_us=at, end_us=at, thread_id=thread)
        for instant, name, value, unit in self.counters:
            at = self._us(instant)
            yield Record(kind="counter", kernel_name=name, stream_id=0, start_us=at, end_us=at, value=value, unit=unit)

    def take(self, drained: Drained) -> None:
        """Adds what the ring gave. Called for active sessions by `collect`."""
        self.launched += drained.launched
        self.overwritten += drained.overwritten
        self.unfinished += drained.unfinished
        if len(drained.records):
            self._batches.append(drained.records)
            self.thread_names = tracks.names(set(drained.records[:, _THREAD].tolist())) | self.thread_names

    def keep_facts(self) -> None:
        """Reads the facts of every plan that ran, which may go with their plans after the session, and what threads
        did.
        """
        self._services = tracks.known()
        self.thread_names = tracks.names(each.thread for each in self.regions) | self.thread_names
        for batch in self._batches:
            for plan_id in set(batch[:, _PLAN].tolist()) - self._facts.keys():
                self._facts[plan_id] = facts.of_plan(plan_id)
        self.plans = facts.expressions(self._facts)


def session(
    *,
    activities: Sequence[str] = ("cpu",),
    record_shapes: bool = False,
    with_stack: bool = False,
    sample_interval_ms: float | None = None,
    exporters: Sequence[Exporter] = (),
    tensorboard_dir: str | Path | None = None,
) -> Session:
    """A profile of everything that runs inside the `with` block, from every thread.

    Results made inside and not evaluated are kept, and evaluated at the block's end, at its marks and at region
    boundaries. `exporters` write their files at the end. Activities that this machine cannot record are named, with the
    reason, in `Session.capability`. Raises ArgumentError for an unknown activity, and ProfileError for Python stacks,
    sampling and TensorBoard, which this version does not record.
    """
    unknown = sorted(set(activities) - set(ACTIVITIES))
    if unknown:
        raise ArgumentError(
            f"no such activity: {', '.join(unknown)}", hints=[f"activities are {', '.join(ACTIVITIES)}"]
        )
    refused = {
        "with_stack": with_stack,
        "sample_interval_ms": sample_interval_ms is not None,
        "tensorboard_dir": tensorboard_dir is not None,
    }
    for name in (name for name, asked in refused.items() if asked):
        raise ProfileError(f"session({name}=...): this version does not record that", hints=[f"leave {name} out"])
    return Session(activities, record_shapes, exporters)


class region:  # noqa: N801 - a context manager that reads as a verb, as users write it
    """Names what the calling thread does inside the `with` block. Costs next to nothing when no session is on.

    Results made before the block and inside it are evaluated at its beginning and at its end, so that each is recorded
    where it was made.
    """

    __slots__ = ("_name", "_start_ns")

    def __init__(self, name: str) -> None:
        self._name = name
        self._start_ns = 0

    def __enter__(self) -> Self:
        flush()
        self._start_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _active:
            return
        if kind is None:
            flush()
        event = RegionEvent(self._name, threading.get_ident(), self._start_ns, time.monotonic_ns())
        with _lock:
            collect()
            for each in _active:
                each.regions.append(
                    RegionEvent(event.name, event.thread, max(event.start_ns, each.start_ns), event.end_ns)
                )


def counter(name: str, value: float, unit: str = "") -> None:
    """Notes a value of the user's own (a loss, tokens per second) in every active session; nothing when none is on."""
    for each in list(_active):
        each.counters.append((time.monotonic_ns(), name, float(value), unit))


def copied(nbytes: int, direction: str, start_ns: int) -> None:
    """Notes a copy that the calling thread began at `start_ns` and has just made, in every active session."""
    if _active:
        event = CopyEvent(start_ns, time.monotonic_ns(), threading.get_ident(), nbytes, direction)
        for each in list(_active):
            each.copies.append(event._replace(start_ns=max(start_ns, each.start_ns)))


def moment() -> Moment | None:
    """This moment of the calling thread, which enqueues something; None when no session is on."""
    return Moment(threading.get_ident(), time.monotonic_ns()) if _active else None


def worked(start_ns: int, issued: Moment) -> None:
    """Notes, in every active session, that the calling thread has done from `start_ns` on what was enqueued then."""
    for each in list(_active):
        each.issued.append(IssuedWork(threading.get_ident(), start_ns, time.monotonic_ns(), issued))


_waiting: list[Callable[[], None]] = []


def before_end(wait: Callable[[], None]) -> None:
    """Has the end of every session call `wait`, which returns when what was enqueued inside it has run."""
    _waiting.append(wait)


def note_unmeasured(device: str, kernels: int) -> None:
    """Counts kernels that were launched on a GPU, of which nobody knows how long they took."""
    if not _active:
        return
    with _lock:
        for each in _active:
            each.launched += kernels
            each.unmeasured[device] = each.unmeasured.get(device, 0) + kernels


def flush() -> None:
    """Evaluates what the calling thread made in active sessions and nobody has evaluated. Nothing when none is on."""
    if _active:
        _pending.flush()


def collect() -> None:
    """Moves what the ring holds into the active sessions."""
    with _lock:
        drained = recorder.drain()
        for each in _active:
            each.take(drained)


def current() -> Session:
    """The innermost active session of the program's own, else the last one that ended. Raises ProfileError when there
    was none.
    """
    with _lock:
        found = next((each for each in reversed(_active) if not each.observer), _last)
    if found is None:
        raise ProfileError("no session has run", hints=["profile something inside `with profiler.session():`"])
    return found


def _begin(starting: Session) -> None:
    flush()
    with _lock:
        collect()
        facts.keep()
        starting.start_ns = time.monotonic_ns()
        _active.append(starting)
        if not starting.observer and _owners() == 1:
            _pending.watch()
        if len(_active) == 1:
            recorder.start()


def _end(ending: Session, *, flush_results: bool) -> None:
    global _last  # noqa: PLW0603 - the process has one
    try:
        if flush_results:
            _pending.flush(all_threads=True)
            for wait in _waiting:
                wait()
    finally:
        with _lock:
            ending.end_ns = time.monotonic_ns()
            collect()
            _active.remove(ending)
            if not _active:
                recorder.stop()
            if not ending.observer and not _owners():
                _pending.unwatch()
            ending.keep_facts()
            facts.release()
            if not ending.observer:
                _last = ending


def count() -> int:
    """Active sessions, those begun from outside among them."""
    return len(_active)


def _owners() -> int:
    """Active sessions of the program's own."""
    return sum(not each.observer for each in _active)
