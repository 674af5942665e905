"""Which region asked for what ran: its thread's at that moment or, for what a stream ran, the one that enqueued it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from tessera.profiling.recording.regions import Presence

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
    presences: Iterable[Presence], threads: Instants, instants: Instants
) -> tuple[NDArray[numpy.uint32], list[str | None]]:
    """For each event, by the thread and instant at which it was asked for: the place of its region in the list of
    names; the last name, None, is that of events in no region.
    """
    by_thread: dict[int, list[Presence]] = {}
    for each in sorted(
        presences, key=lambda each: each.instant_ns
    ):  # the thread that begins a session notes for others
        by_thread.setdefault(each.thread, []).append(each)
    names = list(dict.fromkeys(each.name for own in by_thread.values() for each in own if each.name is not None))
    code: dict[str | None, int] = {name: place for place, name in enumerate(names)}
    codes = numpy.full(len(instants), len(names), numpy.uint32)
    for thread, own in by_thread.items():
        mine = threads == thread
        steps = numpy.array([len(names), *[code.get(each.name, len(names)) for each in own]], numpy.uint32)
        begins = numpy.array([each.instant_ns for each in own])
        codes[mine] = steps[numpy.searchsorted(begins, instants[mine], side="right")]
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
