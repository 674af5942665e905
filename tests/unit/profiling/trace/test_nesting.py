"""Slices of a timeline made to nest."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.trace.nesting import fit

SLICES = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 60), st.integers(0, 1)), max_size=20).map(sorted)


def fitted(slices: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], int]:
    """The new edges of slices given as (start, duration, track)."""
    start, duration, track = numpy.array(slices, dtype=numpy.int64).reshape(-1, 3).T
    starts, ends, largest = fit(start, start + duration, track)
    return list(zip(starts.tolist(), ends.tolist(), strict=True)), largest


def crossings(edges: list[tuple[int, int]], tracks: list[int]) -> list[tuple[int, int]]:
    """Pairs of one track that neither nest nor are disjoint."""
    found = []
    for one, (a, b) in enumerate(edges):
        for other, (c, d) in enumerate(edges[:one]):
            apart = b <= c or d <= a
            if tracks[one] == tracks[other] and not apart and not (a <= c and d <= b) and not (c <= a and b <= d):
                found.append((other, one))
    return found


@given(SLICES)
def test_any_two_slices_of_a_track_nest_or_are_disjoint(slices: list[tuple[int, int, int]]) -> None:
    edges, _ = fitted(slices)
    assert crossings(edges, [track for _, _, track in slices]) == []
    for (start, duration, _), (begin, finish) in zip(slices, edges, strict=True):
        assert begin <= finish
        assert duration == 0 or start <= begin <= finish <= start + duration


@given(SLICES)
def test_slices_that_nest_already_are_left_alone(slices: list[tuple[int, int, int]]) -> None:
    edges, _ = fitted(slices)
    again = [(start, end - start, track) for (start, end), (_, _, track) in zip(edges, slices, strict=True)]
    ordered = sorted(again)
    assert fitted(ordered) == ([(start, start + duration) for start, duration, _ in ordered], 0)


def test_crossing_edges_move_by_the_smaller_correction() -> None:
    # A kernel whose end is 2 ns past its region's is cut by 2; one that begins 1 ns before its forerunner's end moves.
    assert fitted([(0, 100, 0), (90, 12, 0)]) == ([(0, 100), (90, 100)], 2)
    assert fitted([(0, 50, 0), (49, 41, 0)]) == ([(0, 50), (50, 90)], 1)


def test_slices_nested_deeper_than_layers_are_left_alone() -> None:
    nested = [(depth, 400 - 2 * depth, 0) for depth in range(150)]
    assert fitted(nested) == ([(start, start + duration) for start, duration, _ in nested], 0)


def test_only_what_crosses_moves_in_a_long_track() -> None:
    kernels = [(10 * index, 10, 0) for index in range(10_000)]
    region = (5_000, 40_003, 0)  # ends 3 ns into a kernel
    edges, largest = fitted(sorted([*kernels, region]))
    assert largest == 3
    assert crossings(edges[480:520] + edges[4480:4520], [0] * 80) == []
    assert (45_003, 45_010) in edges
