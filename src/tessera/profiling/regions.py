"""Which region a record belongs to: work on intervals of one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegionEvent:
    """A region that has ended: its name, its thread, and its times in nanoseconds of `time.monotonic_ns`."""

    name: str
    thread: int
    start_ns: int
    end_ns: int


def innermost(regions: Sequence[RegionEvent], thread: int, instants_ns: Sequence[int]) -> list[str]:
    """For each instant (ascending), the name of the innermost region of `thread` around it, "" where there is none."""
    waiting = sorted(
        (each for each in regions if each.thread == thread), key=lambda each: (-each.start_ns, each.end_ns)
    )
    opened: list[RegionEvent] = []
    names = []
    for instant in instants_ns:
        while waiting and waiting[-1].start_ns <= instant:
            opened.append(waiting.pop())
        while opened and opened[-1].end_ns < instant:
            opened.pop()
        names.append(opened[-1].name if opened else "")
    return names
