"""Slices that nest: on one track of a timeline any two either nest or are disjoint. Perfetto drops others silently."""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

Times = NDArray[numpy.int64]

_LAYERS: Final = 64
"""Depth to which nested slices are set aside by whole columns; what is nested deeper is looked at one by one."""


def fit(start: Times, end: Times, track: NDArray[numpy.int64]) -> tuple[Times, Times, int]:
    """New edges for slices, which are ordered by their start, so that any two of a track nest or are disjoint; and the
    largest change.

    Kernels and regions may be timed by different clocks, so edges that coincide may cross by the error of the
    conversion. Where two slices cross, the later one begins where the earlier one ends or, when it began inside an
    outer slice that ends first, is cut at the outer one's end. Almost all slices cross nothing, which is found out
    by columns.
    """
    starts, ends = start.copy(), numpy.maximum(start, end)
    for own in _by_track(track):
        # Fitted slices may cross some that did not cross before, if seldom; each round shortens some, so that it ends.
        # Edges move to where there was one of a slice that crosses, which is never inside of one that crosses none.
        crossing = own
        while len(crossing):
            crossing = _fit_track(starts, ends, crossing)
    largest = max(int((starts - start).max(initial=0)), int((end - ends).max(initial=0)))
    return starts, ends, largest


def _by_track(track: NDArray[numpy.int64]) -> list[NDArray[numpy.int64]]:
    """The slices of each track, by start."""
    if (track[1:] == track[:-1]).all():
        return [numpy.arange(len(track))]
    order = numpy.argsort(track, kind="stable")
    return numpy.split(order, numpy.flatnonzero(numpy.diff(track[order])) + 1)


def in_order(starts: Times, ends: Times) -> bool:
    """Whether slices stand by their start, outer ones first."""
    steps = numpy.diff(starts)
    return not ((steps < 0) | ((steps == 0) & (numpy.diff(ends) > 0))).any()


def _fit_track(starts: Times, ends: Times, own: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Moves edges of the slices `own`, which share a track; gives those that may still cross, none where none moved."""
    begins, finishes = starts[own], ends[own]
    if not in_order(begins, finishes):
        order = numpy.lexsort((-finishes, begins))
        own, begins, finishes = own[order], begins[order], finishes[order]
    crossing = own[_contested(begins, finishes)]
    before = starts[crossing], ends[crossing]
    _fit_in_order(starts, ends, _fit_pairs(starts, ends, crossing))
    moved = (before[0] != starts[crossing]).any() or (before[1] != ends[crossing]).any()
    return crossing if moved else crossing[:0]


def _contested(start: Times, end: Times) -> NDArray[numpy.int64]:
    """Positions of the slices that cross others, and of some around them; empty where none cross.

    Layer by layer, those are set aside that have no edge of another strictly inside.
    """
    rest, begins, finishes = numpy.arange(len(start)), start, end
    for _ in range(_LAYERS):
        alone = numpy.append(finishes[:-1] <= begins[1:], True)[: len(rest)]
        if alone.all():
            return rest[:0]
        # What ends inside another began before it and is not alone: its successor begins before its end.
        others, asked = numpy.sort(finishes[~alone]), numpy.flatnonzero(alone)
        opened = numpy.searchsorted(others, begins[asked], "right")
        alone[asked] = opened >= numpy.searchsorted(others, finishes[asked], "left")
        if not alone.any():
            break
        rest, begins, finishes = rest[~alone], begins[~alone], finishes[~alone]
    return rest


def _fit_pairs(starts: Times, ends: Times, own: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Moves edges of those of the slices `own`, as `_fit_in_order` does, that meet one other alone, which are most by
    far; gives the others, without those that meet none.
    """
    reach = numpy.maximum.accumulate(ends[own])
    opens = numpy.concatenate([[True], starts[own][1:] >= reach[:-1], [True]])[: len(own) + 1]
    sizes = numpy.diff(numpy.flatnonzero(opens))
    first = own[:-1][numpy.repeat(sizes == 2, sizes)[:-1] & opens[:-2]]
    second = own[1:][numpy.repeat(sizes == 2, sizes)[1:] & ~opens[1:-1]]
    outer = ends[first]
    crosses = outer < ends[second]
    later = crosses & (outer - starts[second] <= ends[second] - outer)  # the smaller of the two corrections
    starts[second[later]] = outer[later]
    cut = crosses & ~later
    ends[second[cut]] = outer[cut]
    return own[numpy.repeat(sizes > 2, sizes)]


def _fit_in_order(starts: Times, ends: Times, own: NDArray[numpy.int64]) -> None:
    """Moves edges of the slices `own` of one track, which are in order of their start, outer before inner."""
    opened: list[tuple[int, int]] = []
    begins, finishes = starts[own].tolist(), ends[own].tolist()  # numbers of Python's, which loops take faster
    for place, (begin, finish) in enumerate(zip(begins, finishes, strict=True)):
        start, end = begin, finish
        while opened and opened[-1][1] <= start:
            opened.pop()
        if opened:
            start = max(start, opened[-1][0])  # the outer one may itself have been moved
            end = max(start, end)
            outer = opened[-1][1]
            if outer < end:
                # The smaller of the two corrections: after the earlier slice, or cut to lie within it.
                if outer - start <= end - outer:
                    start = outer
                    while opened and opened[-1][1] <= start:
                        opened.pop()
                    if opened:
                        end = min(end, opened[-1][1])
                else:
                    end = outer
                end = max(start, end)
        begins[place], finishes[place] = start, end
        opened.append((start, end))
    starts[own], ends[own] = begins, finishes
