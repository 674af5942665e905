"""Collectives: sizes, bandwidth, overlap with the kernels of their rank, ranks that come late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import analyze
from tessera.errors import ArgumentError
from tests.unit.profiling.analyses.traces import collective, kernel, trace

TWO_RANKS = trace(
    kernel("matmul", 0, 40, rank=0),
    kernel("exp", 30, 20, rank=0),
    collective(20, 60, 6e6, rank=0, correlation=1),
    collective(100, 40, 1e3, rank=0, correlation=2),
    kernel("matmul", 0, 10, rank=1),
    collective(35, 45, 6e6, rank=1, correlation=1),
    collective(100, 40, 1e3, rank=1, correlation=2),
    capability={"collective_algorithm": "gloo does not tell"},
    metadata={"ranks": {"0": {"uncertainty_ns": 0}, "1": {"uncertainty_ns": 4000}}},
)


def test_rows_tell_calls_ranks_time_and_bandwidth() -> None:
    large, small = analyze.collectives(TWO_RANKS)
    assert (large.collective, large.bytes, large.calls, large.ranks) == ("all_reduce", 6e6, 2, 2)
    assert (large.median_us, large.total_ms) == (pytest.approx(52.5), pytest.approx(0.105))
    assert large.bandwidth_gbps == pytest.approx(12e6 / 105e3)
    assert small.bytes == 1e3


def test_overlap_is_the_time_beside_kernels_of_the_same_rank() -> None:
    large, small = analyze.collectives(TWO_RANKS)
    assert large.overlap_pct == pytest.approx(100 * 30 / 105)  # rank 0: 20 to 50 of 20 to 80; rank 1: none
    assert large.exposed_ms == pytest.approx(0.075)
    assert small.overlap_pct == 0.0


def test_ranks_that_come_late_show_as_skew_with_the_clocks_uncertainty() -> None:
    result = analyze.collectives(TWO_RANKS)
    assert [row.skew_us for row in result] == [pytest.approx(15.0), pytest.approx(0.0)]
    assert "clocks of the ranks agree within 4.0 us" in str(result)


def test_small_collectives_are_left_out() -> None:
    assert [row.bytes for row in analyze.collectives(TWO_RANKS, min_bytes=1 << 20)] == [6e6]
    with pytest.raises(ArgumentError, match="min_bytes"):
        analyze.collectives(TWO_RANKS, min_bytes=-1)


def test_what_is_not_known_is_said() -> None:
    shown = str(analyze.collectives(TWO_RANKS))
    assert "algorithm: not measured: gloo does not tell" in shown
    alone = analyze.collectives(trace(collective(0, 5, 8.0)))
    assert [row.overlap_pct for row in alone] == [None]
    assert "overlap_pct, exposed_ms: not measured: the trace has no kernels to compare with" in str(alone)
    assert "skew_us, late_rank: not measured: needs numbered collectives of several ranks" in str(alone)


def test_a_trace_without_kernels_may_tell_the_overlap_itself() -> None:
    (row,) = analyze.collectives(trace(collective(0, 5, 8.0, collective_overlap_pct=46.0)))
    assert row.overlap_pct == pytest.approx(46.0)


def test_the_picture_has_bytes_and_durations(tmp_path: Path) -> None:
    text = analyze.collectives(TWO_RANKS).plot(tmp_path / "collectives.svg").read_text()
    assert "overlap with kernels" in text
    with pytest.raises(ArgumentError, match="nothing to draw"):
        analyze.collectives(trace()).plot(tmp_path / "none.svg")


def test_bandwidth_is_null_where_bytes_are_not_known_or_nothing_is_moved() -> None:
    (unknown,) = analyze.collectives(trace({**collective(0, 10, 0), "collective_bytes": None}))
    (alone,) = analyze.collectives(trace(collective(0, 10, 1000, collective_algorithm="identity")))
    assert unknown.bandwidth_gbps is None
    assert alone.bandwidth_gbps is None


def test_copies_without_bytes_have_no_sum_of_them() -> None:
    copy = {"kind": "memcpy", "kernel_name": "copy", "memcpy_dir": "HtoD", "start_ns": 0, "dur_ns": 1000}
    (unknown,) = analyze.memory(trace(copy))
    (known,) = analyze.memory(trace({**copy, "bytes": 4000.0}))
    assert (unknown.bytes, known.bytes) == (None, 4000.0)


def test_ranks_of_other_tools_are_not_matched_by_launch_numbers() -> None:
    ranks = (collective(20, 60, 1e6, rank=0, correlation=1), collective(35, 45, 1e6, rank=1, correlation=1))
    (ours,), (foreign,) = (
        analyze.collectives(trace(*ranks, metadata={"source": name})) for name in ("tessera", "nsys")
    )
    assert (ours.skew_us, foreign.skew_us) == (15.0, None)


def test_collectives_that_are_too_small_are_counted() -> None:
    one = trace(collective(0, 9, 1e6), collective(20, 9, 4e6))
    assert "2 of 2 collectives are smaller; the largest collective has 4,000,000 bytes" in str(
        analyze.collectives(one, min_bytes=64 << 20)
    )
    assert "are smaller" not in str(analyze.collectives(one))
    assert "no collective ran" in str(analyze.collectives(trace(kernel("exp", 0, 5))))
