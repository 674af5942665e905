"""Which region asked for what ran: its thread's at that moment or, for what a stream ran, the one that enqueued it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from tessera.profiling.regions import RegionEvent, innermost

SLACK_NS: Final = 2_000
"""Kernels are timed by another clock than the work around them: what begins so little earlier is still part of it."""

Instants = NDArray[numpy.int64]


class Moment(NamedTuple):
    """An instant of a thread, in nanoseconds of `time.monotonic_ns`."""

    thread: int
    instant_ns: int


class IssuedWork(NamedTuple):
    """Work that a thread did from `start_ns` to `end_ns`, and when and by whom it was enqueued."""

    thread: int
    start_ns: int
    end_ns: int
    issued: Moment


def region_codes(
    regions: Sequence[RegionEvent], threads: Instants, instants: Instants
) -> tuple[NDArray[numpy.uint32], list[str | None]]:
    """For each event, by the thread and instant at which it was asked for: the place of its innermost region in the
    list of names; the last name, None, is that of events in no region.
    """
    names = list(dict.fromkeys(each.name for each in regions))
    code = {name: place for place, name in enumerate(names)}
    codes = numpy.full(len(instants), len(names), numpy.uint32)
    for thread in {each.thread for each in regions}:
        own = [each for each in regions if each.thread == thread]
        # The innermost region changes only where one begins or has ended.
        changes = sorted({each.start_ns for each in own} | {each.end_ns + 1 for each in own})
        found = [code.get(name, len(names)) for name in innermost(own, thread, changes)]
        mine = threads == thread
        steps = numpy.array([len(names), *found], numpy.uint32)
        codes[mine] = steps[numpy.searchsorted(numpy.array(changes), instants[mine], side="right")]
    return codes, [*names, None]


def asked(issued: Iterable[IssuedWork], threads: Instants, starts: Instants) -> tuple[Instants, Instants]:
    """By whom and when each event was asked for: where it ran, or where the work it belongs to was enqueued."""
    by_thread: dict[int, list[IssuedWork]] = {}
    for work in sorted(issued, key=lambda each: each.start_ns):
        by_thread.setdefault(work.thread, []).append(work)
    if by_thread:
        threads, instants = threads.copy(), starts.copy()
        for thread, works in by_thread.items():
            events = numpy.flatnonzero(threads == thread)
            begins = numpy.array([work.start_ns for work in works])
            ends = numpy.array([work.end_ns for work in works])
            place = numpy.searchsorted(begins, starts[events] + SLACK_NS, side="right") - 1
            inside = (place >= 0) & (starts[events] <= ends[place])
            events, place = events[inside], place[inside]
            threads[events] = numpy.array([work.issued.thread for work in works])[place]
            instants[events] = numpy.array([work.issued.instant_ns for work in works])[place]
        return threads, instants
    return threads, starts
