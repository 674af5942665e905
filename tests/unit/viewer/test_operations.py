"""The rows of kernels: by work, with percentiles and first calls apart."""

from __future__ import annotations

import pytest

from tessera.profiling.analyses import operations as module
from tessera.profiling.analyses.operations import operations
from tessera.profiling.trace.recorded_target import recorded_target
from tests.unit.profiling.analyses.traces import kernel, repeated, trace
from tests.unit.viewer.made import whole_run


def test_two_shapes_of_one_operator_are_two_rows_told_apart() -> None:
    small, large = ({"flops": flops, "bytes": 8.0, "dtype": "fp32"} for flops in (2e6, 4e6))
    found = operations(trace(kernel("matmul", 0, 3, **small), kernel("matmul", 9, 5, **large)), None)
    assert [(row.kernel, row.work, row.total_ms) for row in found] == [
        ("matmul", "4 MFLOP, 8 B", 0.005),
        ("matmul", "2 MFLOP, 8 B", 0.003),
    ]


def test_the_first_call_is_apart_and_does_not_move_the_median() -> None:
    (row,) = operations(trace(*repeated("gelu", [900, *[10] * 8, 20])), None)
    assert (row.calls, row.first_us, row.median_us, row.max_us) == (10, 900, 10, 900)
    assert (row.p10_us, row.p90_us) == (10, 20)


def test_bounds_are_those_of_the_recorded_ceilings() -> None:
    run = whole_run()
    found = operations(run, recorded_target(run.metadata))
    assert sum(row.calls for row in found) == 200
    assert sum(row.share_pct for row in found) == pytest.approx(100)
    assert all(row.efficiency_pct is not None for row in found)
    assert operations(run, None).missing.keys() == {"binding", "efficiency_pct"}


def test_kinds_of_work_beyond_the_first_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    found = operations(trace(*[kernel(f"k{number}", 10 * number, 1 + number) for number in range(5)]), None)
    assert [(row.kernel, row.calls) for row in found] == [("k4", 1), ("k3", 1), ("3 others", 3)]
    assert sum(row.share_pct for row in found) == pytest.approx(100)


def test_of_very_many_kernels_percentiles_are_those_of_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    run = whole_run()
    exact = operations(run, recorded_target(run.metadata)).to_polars()
    monkeypatch.setattr(module, "MOST_EXACT", 199)
    found = operations(run, recorded_target(run.metadata))
    assert "within 0.4 %" in found.notes[0]
    for name in ("median_us", "p10_us", "p90_us"):
        assert found.to_polars()[name].to_list() == pytest.approx(exact[name].to_list(), rel=0.004)
    same = ["kernel", "work", "calls", "total_ms", "first_us", "max_us"]
    assert found.to_polars().select(same).rows() == exact.select(same).rows()


def test_a_trace_without_kernels_has_no_rows() -> None:
    assert len(operations(trace(), None)) == 0
