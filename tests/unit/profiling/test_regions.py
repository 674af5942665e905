"""Intervals of one thread: which region is innermost, and slices made to nest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.regions import RegionEvent, Slice, innermost, nest
from tessera.profiling.schema import Record

PAYLOAD = Record(kind="kernel", kernel_name="k", stream_id=0, start_us=0.0, end_us=0.0)
SLICES = st.lists(
    st.builds(lambda start, length: Slice(start, start + length, PAYLOAD), st.integers(0, 100), st.integers(0, 60)),
    max_size=20,
)


def test_innermost_region_is_the_one_that_began_last() -> None:
    regions = [RegionEvent("inner", 1, 10, 20), RegionEvent("outer", 1, 0, 30), RegionEvent("elsewhere", 2, 0, 99)]
    assert innermost(regions, 1, [5, 15, 25, 40]) == ["outer", "inner", "outer", ""]
    assert innermost(regions, 3, [5]) == [""]


@given(SLICES)
def test_any_two_slices_nest_or_are_disjoint(slices: list[Slice]) -> None:
    nested, _ = nest(slices)
    assert len(nested) == len(slices)
    for index, one in enumerate(nested):
        assert one.start_ns <= one.end_ns
        for other in nested[index + 1 :]:
            disjoint = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
            inside = one.start_ns <= other.start_ns and other.end_ns <= one.end_ns
            around = other.start_ns <= one.start_ns and one.end_ns <= other.end_ns
            assert disjoint or inside or around


@given(SLICES)
def test_slices_that_nest_already_are_left_alone(slices: list[Slice]) -> None:
    nested, _ = nest(slices)
    again, largest = nest(nested)
    assert largest == 0
    assert [(each.start_ns, each.end_ns) for each in again] == [(each.start_ns, each.end_ns) for each in nested]


def test_crossing_edges_move_by_the_smaller_correction() -> None:
    # A kernel whose end is 2 ns past its region's is cut by 2; one that begins 1 ns before its forerunner's end moves.
    cut, shift = nest([Slice(0, 100, PAYLOAD), Slice(90, 102, PAYLOAD)])
    assert [(each.start_ns, each.end_ns) for each in cut] == [(0, 100), (90, 100)]
    assert shift == 2
    moved, shift = nest([Slice(0, 50, PAYLOAD), Slice(49, 90, PAYLOAD)])
    assert [(each.start_ns, each.end_ns) for each in moved] == [(0, 50), (50, 90)]
    assert shift == 1
