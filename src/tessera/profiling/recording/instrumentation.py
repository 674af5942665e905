"""Instrumentation: what Python code adds to the recordings that are on: regions, counters, copies, work of streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

from tessera.lazy import evaluation
from tessera.profiling.recording import regions
from tessera.profiling.recording.attribution import IssuedWork, Moment
from tessera.profiling.recording.events import RecordedEvent
from tessera.profiling.recording.regions import EnteredRegion, Look, Presence, RegionEvent
from tessera.profiling.recording.texts import number, text
from tessera.system import forks

if TYPE_CHECKING:
    from tessera.profiling.recording.device_kernels import Measured
    from tessera.profiling.recording.recording import CountedKernel, Recording

lock = forks.recursive_lock()
"""Held while sessions begin and end, and while they count."""

recordings: list[Recording] = []
"""Those of the sessions that keep what is noted now."""

_look: Look | None = None
follows_contexts = False
"""Whether contexts were seen to take turns on a thread. Before that, nobody needs to look before every run of a plan
which region the thread is in: it enters and leaves them itself.
"""


def record_into(wanted: Sequence[Recording]) -> None:
    """From now on these keep what is noted. New ones learn which region every thread is in."""
    global _look  # noqa: PLW0603 - one for the process, as sessions are
    if recordings != list(wanted):
        recordings[:] = wanted
        _look = regions.watcher(_note_presence) if wanted else None
        look()
    evaluation.before_run = _look if follows_contexts else None


def _note_presence(presence: Presence) -> None:
    for each in list(recordings):
        each.presences.append(presence)


def look(instant_ns: int | None = None) -> None:
    """Notes which region the calling thread is in since an instant, by default now, where that is news."""
    if _look is not None:
        _look(instant_ns)


def note_region(scope: EnteredRegion) -> None:
    """Notes, in every active session, a region that the calling thread leaves now."""
    if recordings:
        end_ns, thread = time.monotonic_ns(), threading.get_ident()
        for each in list(recordings):
            each.regions.append(RegionEvent(scope.name, thread, max(scope.start_ns, each.start_ns), end_ns))


def counter(name: str, value: SupportsFloat, unit: str = "") -> None:
    """Notes a value of the user's own (a loss, tokens per second) in every active session; nothing when none is on. A
    tensor of one element that is pending is evaluated for it.

    Raises ArgumentError for a name that is no text, and a value that is no number.
    """
    if not recordings:
        return
    event = (time.monotonic_ns(), text(name), number(value), text(unit))
    for each in list(recordings):
        each.counters.append(event)


def note(kind: str, name: str, start_ns: int, end_ns: int | None = None, **columns: Any) -> None:
    """Notes, in every active session, an event that the calling thread began at `start_ns` and has finished, now or at
    `end_ns`, with further columns of `table.COLUMNS`. One of a `stream_name` stands on a track of its own.
    """
    if recordings:
        look(start_ns)
        event = RecordedEvent(kind, name, start_ns, end_ns or time.monotonic_ns(), threading.get_ident(), columns)
        for each in list(recordings):
            each.events.append(event._replace(start_ns=max(start_ns, each.start_ns)))


def copied(nbytes: int, direction: str, start_ns: int) -> None:
    """Notes a copy, as `note` does."""
    if recordings:
        gbps = nbytes / max(time.monotonic_ns() - start_ns, 1)
        note("memcpy", f"memcpy {direction}", start_ns, bytes=nbytes, memcpy_dir=direction, memcpy_gbps=gbps)


def moment() -> Moment | None:
    """This moment of the calling thread, which enqueues something; None when no session is on."""
    if not recordings:
        return None
    look()
    return Moment(threading.get_ident(), time.monotonic_ns())


def worked(start_ns: int, issued: Moment) -> None:
    """Notes, in every active session, that the calling thread has done from `start_ns` on what was enqueued then."""
    for each in list(recordings):
        each.issued.append(IssuedWork(threading.get_ident(), start_ns, time.monotonic_ns(), issued))


def note_unmeasured(
    device: str, kernels: int, measured: Sequence[Measured] = (), counted: Sequence[CountedKernel] = ()
) -> None:
    """Counts kernels that were launched on a GPU. Nobody knows how long they took, but for those of one run that are
    `measured`, of which some may have been `counted`, too.
    """
    if not recordings:
        return
    with lock:
        for each in recordings:
            each.launched += kernels
            each.unmeasured[device] = each.unmeasured.get(device, 0) + kernels
            if measured and each.keeps(measured[0].run.launched_ns):
                each.take_device(measured, counted)
