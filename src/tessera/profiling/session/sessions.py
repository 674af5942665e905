"""Profile sessions: what runs between the beginning and the end of a `with session()` block, from every thread.

Sessions may be nested and may overlap; each sees what ran while it was on. The native ring is drained into all active
sessions by a thread, at the boundaries of sessions and whenever someone reads an active session.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy
from numpy.typing import NDArray

from tessera.errors import LibraryError, ProfileError, TesseraError
from tessera.profiling.counters.cupti_activity import CuptiActivity
from tessera.profiling.recording import facts, instrumentation
from tessera.profiling.recording.callers import together
from tessera.profiling.recording.device_kernels import COLLECTOR, KernelTimeSource
from tessera.profiling.recording.regions import EnteredRegion
from tessera.profiling.recording.texts import text
from tessera.profiling.ring import recorder
from tessera.profiling.ring.draining import Drain
from tessera.profiling.session import enqueued
from tessera.profiling.session.delivery import deliver
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.pending import PendingResults
from tessera.profiling.session.spill import AFTER_S, Spill
from tessera.profiling.session.state import SessionState

if TYPE_CHECKING:
    from tessera.profiling.sampling.sampling import Sampling
    from tessera.profiling.session.torch_operators import OperatorMode
    from tessera.profiling.trace.schema import Record
    from tessera.profiling.trace.table import Trace

_lock = instrumentation.lock
_active: list[Session] = []
_pending = PendingResults()
_last: Session | None = None


class Session(SessionState):
    """A profile of what runs while it is on. Made by `profile.session(...)`; use it as a context manager, once.

    An `observer` is a session that somebody outside the program began. It changes nothing that the program does: no
    results are kept or evaluated for it, and the program's `current()` passes it over.
    """

    def __init__(self, options: SessionOptions | None = None, *, observer: bool = False) -> None:
        super().__init__(options, observer=observer)
        self._sampling: Sampling | None = None
        self._operators: OperatorMode | None = None

    def __enter__(self) -> Self:
        if self.start_ns:
            raise ProfileError("this session has already run", hints=["make a new one with profile.session()"])
        if self.options.sampling_ms is not None and not self.observer:
            from tessera.profiling.sampling import sampling

            self._sampling = sampling.prepared(self.options.sampling_ms, self.activities)
            self.recording.capability |= self._sampling.capability
        try:
            _begin(self)
            if self._sampling is not None:
                self._sampling.begin()  # no sample is older than the session
            if "torch" in self.activities and not self.observer:
                from tessera.profiling.session.torch_operators import OperatorMode

                operators = OperatorMode(instrumentation.note, record_shapes=self.options.record_shapes)
                operators.__enter__()  # type: ignore[no-untyped-call]
                self._operators = operators
        except BaseException:  # of computing what was pending, of a thread that cannot start
            if self._sampling is not None:
                self._sampling.end()
            if self.active:
                _abandon(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._operators is not None:
            self._operators.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        own = self.recording.pid
        if own != os.getpid():
            warnings.warn(
                f"the profile session of process {own} goes on there; this fork of it, {os.getpid()}, recorded nothing",
                stacklevel=2,
            )
            return
        try:
            # After an error of the user's, pending results are left alone: computing them could hide that error.
            _end(self, flush_results=kind is None and not self.observer)
        except BaseException as failure:  # of computing them: an error of the program's, too
            self._finish(failure)
            raise
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """What follows the end, with the program's error if it has one: the exporters write their files."""
        if self._sampling is not None:
            self._sampling.end()
            self._take_samples()
        try:
            if self.options.exports:
                deliver(self.trace(), self.options, error)
        finally:
            if self.spill is not None:
                self.spill.remove()

    def enter_phase(self) -> None:
        """Notes that the schedule's phase may have changed."""
        self.recording.windows.turn(self.phase == "active")

    def mark(self, name: str) -> None:
        """Notes an instant. Results made so far by this thread are evaluated first, so that they lie before it."""
        name = text(name)
        self._check_on(f"mark {name!r}")
        flush()
        if self.phase == "active":
            self.recording.marks.append((time.monotonic_ns(), name, threading.get_ident()))

    def step(self) -> None:
        """Says that a step of the training loop is over: the next one begins, and the schedule with it."""
        self._check_on("step")
        flush()
        with _lock:
            collect()
            if self.phase == "active":
                self.recording.marks.append((time.monotonic_ns(), f"step {self.steps}", threading.get_ident()))
            self.steps += 1
            self.enter_phase()
            _update()

    def _check_on(self, what: str) -> None:
        if not self.active:
            hint = "call it inside the with block; a fork of the process starts without the session"
            raise ProfileError(f"{what}: the session is not on", hints=[hint])

    def take_rows(self) -> NDArray[numpy.int64]:
        """The native records since the last call, which the session then holds no more."""
        with _lock:
            return self.recording.take_rows()

    def _take_samples(self) -> None:
        if self._sampling is not None:
            taken = self._sampling.take(self.start_ns)
            self.recording.samples += [taken] if len(taken) else []
            self.recording.about["sampling"] = self._sampling.metadata()

    def _take_all(self) -> None:
        """Takes up what the session's sources hold while it is on."""
        if self.active:
            collect()
            self._take_samples()

    def metadata(self) -> dict[str, Any]:
        """What a trace says of the session, as plain JSON."""
        self._take_all()
        return self.recording.metadata()

    def trace(self) -> Trace:
        """All events as columns (`table.COLUMNS`), by start, with what a file says of them."""
        from tessera.profiling.trace.conversion import trace_of

        self._take_all()
        return trace_of(self.recording)

    def records(self) -> list[Record]:
        """All events in order of their start, in the portable schema: kernels, copies, collectives, operators, regions,
        marks, counters and samples.
        """
        from tessera.profiling.trace.conversion import records_of

        self._take_all()
        return records_of(self.recording)

    def html(self, path: str | Path, *, most_slices: int = 5_000_000, redact: bool = False, code: bool = False) -> Path:
        """Writes the session as a report in one file, which any browser opens, and gives its path. `redact` leaves out
        host names, process numbers and Python stacks; `code` has the compiler make the kernels' code again, which takes
        seconds. Raises ProfileError where it cannot be written.
        """
        from tessera.profiling.export.formats.html import HtmlExporter

        return HtmlExporter(Path(path), redact, most_slices, code).export(self.trace())

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the report in one file, in a frame; of a session that is on, nothing but its text."""
        if self.active:
            return None
        from tessera.profiling.export.formats.html import framed

        return framed(self.trace())

    def report(self) -> None:
        """Prints a row per operator and work: latency, work, bandwidth, efficiency against the measured ceilings."""
        from tessera.profiling.report.report import of_recording

        self._take_all()
        print(of_recording(self.recording))


device_source: Callable[[], KernelTimeSource] = CuptiActivity
"""Makes what GPUs tell their times by."""


def note_refusal(columns: Iterable[str], reason: str) -> None:
    """Says in every active session why columns have no values."""
    with _lock:
        for each in _active:
            each.recording.capability |= dict.fromkeys(columns, reason)


def flush() -> None:
    """Evaluates what the calling thread made in active sessions and nobody has evaluated. Nothing when none is on."""
    if _pending.watching:
        _pending.flush()


def follow_contexts() -> None:
    """Contexts take turns on threads: from now on sessions look which region runs a plan, and which made a result."""
    flush()
    with _lock:
        instrumentation.follows_contexts = True
        if _active:
            _update()


def hand_out(scope: EnteredRegion) -> None:
    """A region ends: what the calling thread made in it, and an error kept from evaluation, is the outer region's."""
    if _pending.watching:
        _pending.hand_out(scope)


def collect() -> None:
    """Moves what the ring holds into the active sessions."""
    with _lock:
        drained = recorder.drain()
        for each in instrumentation.recordings:
            each.take(drained)


def _tend() -> None:
    """What the draining thread does."""
    collect()
    for each in list(_active):
        if each.spill is not None:
            each.spill.write_if_due()


_drain = Drain(_tend)


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
        starting.recording.start_ns = time.monotonic_ns()
        starting.recording.start_unix_ns = time.time_ns()
        facts.keep()
        if "gpu" in starting.activities:
            _time_devices(starting)
        starting.enter_phase()
        if starting.options.spill is not False and starting.options.mode == "timeline" and not starting.observer:
            starting.spill = Spill(starting.recording, 0.0 if starting.options.spill else AFTER_S)
        _active.append(starting)
        _update()


def _abandon(failed: Session) -> None:
    """Turns off what a session has turned on that could not begin."""
    with _lock:
        failed.recording.end_ns = failed.start_ns
        if failed.times_devices:
            COLLECTOR.end()
        if failed in _active:
            _active.remove(failed)
        facts.release()
        _update()


def _end(ending: Session, *, flush_results: bool) -> None:
    global _last  # noqa: PLW0603 - the process has one
    try:
        if flush_results:
            _pending.flush(all_threads=True)
            enqueued.wait()
    finally:
        with _lock:
            ending.recording.end_ns = time.monotonic_ns()
            collect()
            if ending.times_devices:
                _take_devices()
                COLLECTOR.end()
            _active.remove(ending)
            _update()
            ending.recording.keep_facts()
            facts.release()
            if not ending.observer:
                _last = ending


def _time_devices(starting: Session) -> None:
    """Has GPUs time their kernels; where they cannot, a capability says why."""
    try:
        COLLECTOR.begin(device_source())
    except LibraryError as error:
        reason = "; ".join([error.message, *error.hints])
        starting.recording.capability["gpu"] = f"kernels of GPUs are counted, not timed: {reason}"
    else:
        starting.times_devices = True


def _take_devices() -> None:
    """Moves what GPUs have told into the active sessions, each what was launched while it was on."""
    measured, copies = COLLECTOR.take()
    for each in (session.recording for session in _active):
        each.take_device([run for run in measured if each.keeps(run.run.launched_ns)])
        each.events.extend(copy for copy in copies if each.keeps(copy.start_ns))


def _update() -> None:
    """Turns on and off what the sessions that are on, and their schedules, ask for. Called with the lock held."""
    recorded = [each for each in _active if each.phase in ("warmup", "active")]
    instrumentation.record_into([each.recording for each in recorded if each.phase == "active"])
    owners = [each for each in recorded if not each.observer]
    callers = [each.recording.callers.note for each in owners if each.recording.callers is not None]
    if not owners:
        _pending.unwatch()
    elif callers or not _pending.watching or _pending.follows_contexts != instrumentation.follows_contexts:
        _pending.watch(together(callers), follow_contexts=instrumentation.follows_contexts)
    if bool(recorded) == recorder.recording():
        return
    if recorded:
        recorder.start()
        _drain.start()
    else:
        recorder.stop()
        _drain.stop()


def count() -> int:
    """Active sessions, those begun from outside among them."""
    return len(_active)


def _after_fork() -> None:
    """A fork starts without the sessions of its parent, and without what they turned on."""
    _active.clear()
    instrumentation.record_into([])
    _pending.unwatch()
    recorder.stop()
    _drain.stop()


def _close_all() -> None:
    """At the end of the program: sessions left open end, and their exporters write what they have."""
    for each in reversed([each for each in _active if not each.observer]):
        try:
            each.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the other sessions have exporters, too
            print(error if isinstance(error, TesseraError) else f"{type(error).__name__}: {error}", file=sys.stderr)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
