"""Profile sessions: what runs between the beginning and the end of a `with session()` block, from every thread.

Sessions may be nested and may overlap; each sees what ran while it was on. The native ring is drained into all active
sessions at the boundaries of sessions and regions and whenever someone reads an active session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy
from numpy.typing import NDArray

from tessera.errors import ArgumentError, LibraryError, ProfileError
from tessera.profiling import facts, recorder
from tessera.profiling.counters.cupti_activity import CuptiActivity
from tessera.profiling.device_kernels import COLLECTOR, Source
from tessera.profiling.issued import IssuedWork, Moment
from tessera.profiling.noted import NotedEvent
from tessera.profiling.pending import PendingResults
from tessera.profiling.recording import Recording
from tessera.profiling.regions import RegionEvent

ACTIVITIES: Final = {
    "cpu": None,
    "gpu": None,
    "memcpy": None,
    "collective": None,
    "power": "power and temperature are not read on CPUs",
}
"""What can be asked for, and why what is not recorded is not."""

_lock = threading.RLock()
_active: list[Session] = []
_pending = PendingResults()
_last: Session | None = None


class Exporter(Protocol):
    """Writes a session to a file, or sends it away; `profile.chrome(...)` and its like make them."""

    def export(self, session: Session) -> Path | str:
        """Writes the session and says where it is. Raises ProfileError when it cannot be written."""


class Session(Recording):
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
        super().__init__(record_shapes=record_shapes)
        self.observer = observer
        self.times_devices = False
        self.activities = tuple(activities)
        self.capability |= {name: reason for name in activities if (reason := ACTIVITIES[name]) is not None}
        self._exporters = tuple(exporters)

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
        return super().kernel_rows()

    def take_rows(self) -> NDArray[numpy.int64]:
        """The native records since the last call, which the session then holds no more."""
        with _lock:
            return super().take_rows()

    def metadata(self) -> dict[str, Any]:
        """What a trace says of the session, as plain JSON."""
        return super().metadata() | {"activities": list(self.activities)}

    def report(self) -> None:
        """Prints one row per operator: latency, work, bandwidth, and efficiency against the measured ceilings."""
        from tessera.profiling.report import print_report

        print_report(self)


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


def note(kind: str, name: str, start_ns: int, **columns: Any) -> None:
    """Notes, in every active session, an event that the calling thread began at `start_ns` and has just finished, with
    further columns of `table.COLUMNS`.
    """
    if _active:
        event = NotedEvent(kind, name, start_ns, time.monotonic_ns(), threading.get_ident(), columns)
        for each in list(_active):
            each.noted.append(event._replace(start_ns=max(start_ns, each.start_ns)))


def copied(nbytes: int, direction: str, start_ns: int) -> None:
    """Notes a copy, as `note` does."""
    if _active:
        gbps = nbytes / max(time.monotonic_ns() - start_ns, 1)
        note("memcpy", f"memcpy {direction}", start_ns, bytes=nbytes, memcpy_dir=direction, memcpy_gbps=gbps)


def moment() -> Moment | None:
    """This moment of the calling thread, which enqueues something; None when no session is on."""
    return Moment(threading.get_ident(), time.monotonic_ns()) if _active else None


def worked(start_ns: int, issued: Moment) -> None:
    """Notes, in every active session, that the calling thread has done from `start_ns` on what was enqueued then."""
    for each in list(_active):
        each.issued.append(IssuedWork(threading.get_ident(), start_ns, time.monotonic_ns(), issued))


device_source: Callable[[], Source] = CuptiActivity
"""Makes what GPUs tell their times by."""

_waiting: list[Callable[[], None]] = []


def before_end(wait: Callable[[], None]) -> None:
    """Has the end of every session call `wait`, which returns when what was enqueued inside it has run."""
    _waiting.append(wait)


def await_enqueued() -> None:
    """Returns when what was enqueued has run. Raises what that raised."""
    for wait in _waiting:
        wait()


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
        if "gpu" in starting.activities:
            _time_devices(starting)
        starting.start_ns = time.monotonic_ns()
        starting.start_unix_ns = time.time_ns()
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
            await_enqueued()
    finally:
        with _lock:
            ending.end_ns = time.monotonic_ns()
            collect()
            if ending.times_devices:
                _take_devices()
                COLLECTOR.end()
            _active.remove(ending)
            if not _active:
                recorder.stop()
            if not ending.observer and not _owners():
                _pending.unwatch()
            ending.keep_facts()
            facts.release()
            if not ending.observer:
                _last = ending


def _time_devices(starting: Session) -> None:
    """Has GPUs time their kernels; where they cannot, a capability says why."""
    try:
        COLLECTOR.begin(device_source())
    except LibraryError as error:
        reason = "; ".join([error.message, *error.hints])
        starting.capability["gpu"] = f"kernels of GPUs are counted, not timed: {reason}"
    else:
        starting.times_devices = True


def _take_devices() -> None:
    """Moves what GPUs have told into the active sessions, each what was launched while it was on."""
    measured, copies = COLLECTOR.take()
    for each in _active:
        each.take_device([run for run in measured if run.run.launched_ns >= each.start_ns])
        each.noted.extend(copy for copy in copies if copy.start_ns >= each.start_ns)


def count() -> int:
    """Active sessions, those begun from outside among them."""
    return len(_active)


def _owners() -> int:
    """Active sessions of the program's own."""
    return sum(not each.observer for each in _active)
