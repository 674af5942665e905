"""Work that ran elsewhere than where it was asked for: what a stream runs belongs to the region that enqueued it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tessera.profiling.regions import RegionEvent, innermost

SLACK_NS: Final = 2_000
"""Kernels are timed by another clock than the work around them: what begins so little earlier is still part of it."""


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


def region_names(regions: Sequence[RegionEvent], issued: Iterable[IssuedWork], moments: Sequence[Moment]) -> list[str]:
    """For each moment at which something began, the innermost region that asked for it, "" where there is none."""
    asked = _asked(issued, moments)
    names = [""] * len(moments)
    by_thread: dict[int, list[int]] = {}
    for place, moment in enumerate(asked):
        by_thread.setdefault(moment.thread, []).append(place)
    for thread, places in by_thread.items():
        places.sort(key=lambda place: asked[place].instant_ns)
        found = innermost(regions, thread, [asked[place].instant_ns for place in places])
        for place, name in zip(places, found, strict=True):
            names[place] = name
    return names


def _asked(issued: Iterable[IssuedWork], moments: Sequence[Moment]) -> Sequence[Moment]:
    """When what began at these moments was asked for: then, or when the work it belongs to was enqueued."""
    by_thread: dict[int, list[IssuedWork]] = {}
    for work in sorted(issued, key=lambda each: each.start_ns):
        by_thread.setdefault(work.thread, []).append(work)
    if not by_thread:
        return moments
    return [_asked_at(by_thread.get(moment.thread, []), moment) for moment in moments]


def _asked_at(works: Sequence[IssuedWork], moment: Moment) -> Moment:
    place = bisect_right(works, moment.instant_ns + SLACK_NS, key=lambda work: work.start_ns) - 1
    if place >= 0 and moment.instant_ns <= works[place].end_ns:
        return works[place].issued
    return moment
