"""Intervals of one thread: which region is innermost."""

from __future__ import annotations

from tessera.profiling.regions import RegionEvent, innermost


def test_innermost_region_is_the_one_that_began_last() -> None:
    regions = [RegionEvent("inner", 1, 10, 20), RegionEvent("outer", 1, 0, 30), RegionEvent("elsewhere", 2, 0, 99)]
    assert innermost(regions, 1, [5, 15, 25, 40]) == ["outer", "inner", "outer", ""]
    assert innermost(regions, 3, [5]) == [""]
