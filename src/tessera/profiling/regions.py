"""Which region a record belongs to, and slices that nest: work on intervals of one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.profiling.schema import Record


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


@dataclass(slots=True)
class Slice:
    """An interval on a track, in nanoseconds; `payload` is what it stands for."""

    start_ns: int
    end_ns: int
    payload: Record


def nest(slices: Sequence[Slice]) -> tuple[list[Slice], int]:
    """The slices in order of their start, outer before inner, so that any two nest or are disjoint; and the largest
    change.

    Kernels are timed by the cycle counter and regions by the system clock, so edges that coincide may cross by the
    error of the conversion. Where two slices cross, the later one begins where the earlier one ends or, when it began
    inside an outer slice that ends first, is cut at the outer one's end. The largest shift of an edge is given in
    nanoseconds.
    """
    ordered = sorted(slices, key=lambda each: (each.start_ns, -each.end_ns))
    opened: list[Slice] = []
    result = []
    largest = 0
    for each in ordered:
        start, end = each.start_ns, each.end_ns
        while opened and opened[-1].end_ns <= start:
            opened.pop()
        if opened:
            start = max(start, opened[-1].start_ns)  # the outer one may itself have been moved
            end = max(start, end)
        if opened and opened[-1].end_ns < end:
            outer = opened[-1].end_ns
            # The smaller of the two corrections: after the earlier slice, or cut to lie within it.
            if outer - start <= end - outer:
                start = outer
                while opened and opened[-1].end_ns <= start:
                    opened.pop()
                if opened:
                    end = min(end, opened[-1].end_ns)
            else:
                end = outer
        largest = max(largest, start - each.start_ns, each.end_ns - end)
        fitted = Slice(start, max(start, end), each.payload)
        opened.append(fitted)
        result.append(fitted)
    return sorted(result, key=lambda each: (each.start_ns, -each.end_ns)), largest
