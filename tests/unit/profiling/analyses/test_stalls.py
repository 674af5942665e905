"""Stalls and divergence: counters as means over time, groups, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import analyze
from tessera.errors import ArgumentError, ProfileError
from tests.unit.profiling.analyses.traces import kernel, trace

MEASURED = trace(
    kernel("matmul", 0, 30, region="forward", mem_stall_pct=10.0, bytes=3e6, warp_divergence_pct=0.0),
    kernel("matmul", 40, 10, region="backward", mem_stall_pct=50.0, bytes=1e6, warp_divergence_pct=4.0),
    kernel("gather", 60, 20, region="forward", mem_stall_pct=90.0, bytes=1e6, warp_divergence_pct=35.0),
    {"kind": "region", "kernel_name": "forward", "start_ns": 0, "dur_ns": 90_000},
)
BARE = trace(
    kernel("matmul", 0, 30), kernel("exp", 40, 10), capability={"mem_stall_pct": "no counters: ask the administrator"}
)


def test_stalls_are_means_weighted_with_time_and_the_longest_group_comes_first() -> None:
    matmul, gather = analyze.stalls(MEASURED)
    assert (matmul.kernel, matmul.calls, gather.kernel) == ("matmul", 2, "gather")
    assert matmul.mem_stall_pct == pytest.approx(20.0)
    assert (matmul.total_ms, matmul.share_pct) == (pytest.approx(0.04), pytest.approx(100 * 40 / 60))
    assert matmul.achieved_gbps == pytest.approx(100.0)
    assert "not told apart" in str(analyze.stalls(MEASURED))
    assert "not told apart" not in str(analyze.stalls(BARE))


def test_stalls_are_grouped_by_what_is_asked_for() -> None:
    table = analyze.stalls(MEASURED, group_by="region").to_polars()
    assert dict(zip(table["region"], table["mem_stall_pct"], strict=True)) == {
        "forward": pytest.approx(42.0),
        "backward": pytest.approx(50.0),
    }


def test_a_group_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ArgumentError, match="group_by='colour'") as failure:
        analyze.stalls(MEASURED, group_by="colour")
    assert "kernel, operator, shape, line, region" in failure.value.hints[0]


def test_without_counters_the_table_says_why_and_shows_what_there_is() -> None:
    result = analyze.stalls(BARE)
    assert result.to_polars()["mem_stall_pct"].to_list() == [None, None]
    shown = str(result)
    assert "mem_stall_pct: not measured: no counters: ask the administrator" in shown
    assert "Memory stalls" not in shown
    assert "matmul" in shown


def test_divergence_lists_kernels_from_the_threshold_on() -> None:
    (found,) = analyze.divergence(MEASURED, threshold=0.2)
    assert (found.kernel, found.warp_divergence_pct) == ("gather", pytest.approx(35.0))
    assert len(analyze.divergence(MEASURED, threshold=0.0)) == 2
    assert "1 of 2 kernels" in str(analyze.divergence(MEASURED))


def test_divergence_without_counters_is_empty_and_says_why() -> None:
    result = analyze.divergence(BARE)
    assert len(result) == 0
    assert "warp_divergence_pct: not measured: no kernel of this trace has it" in str(result)
    assert "achieved_gbps: not measured: the bytes of these kernels are not known" in str(analyze.stalls(BARE))


def test_kernels_shorter_than_samples_say_so() -> None:
    sample = {"kind": "sample", "kernel_name": "dram_read_gbps", "start_ns": 5, "dur_ns": 0, "dram_read_gbps": 3.0}
    shown = str(analyze.stalls(trace(kernel("exp", 0, 5), sample)))
    assert "dram_read_gbps: not measured: sampled, but no kernel lasted from one sample to the next" in shown


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_is_a_fraction(threshold: float) -> None:
    with pytest.raises(ArgumentError, match="threshold"):
        analyze.divergence(MEASURED, threshold=threshold)


def test_an_empty_trace_has_no_rows() -> None:
    assert len(analyze.stalls(trace())) == 0
    assert list(analyze.divergence(trace())) == []


def test_pictures_are_drawn_with_and_without_counters(tmp_path: Path) -> None:
    assert analyze.stalls(MEASURED).plot(tmp_path / "stalls.png").read_bytes().startswith(b"\x89PNG")
    assert "time, ms" in analyze.stalls(BARE).plot(tmp_path / "bare.svg").read_text()
    assert "gather" in analyze.divergence(MEASURED).plot(str(tmp_path / "divergence.svg")).read_text()


def test_a_picture_of_nothing_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="nothing to draw") as failure:
        analyze.divergence(BARE).plot(tmp_path / "none.png")
    assert "not measured" in failure.value.hints[0]


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="format"):
        analyze.stalls(MEASURED).plot(tmp_path / "stalls.colour")
    with pytest.raises(ProfileError, match="could not be written"):
        analyze.stalls(MEASURED).plot(tmp_path / "nowhere" / "stalls.png")


def test_long_tables_say_how_many_rows_are_not_shown() -> None:
    many = trace(*(kernel(f"op{number}", 10 * number, 5) for number in range(40)))
    result = analyze.stalls(many)
    assert len(list(result)) == 40
    assert "10 more rows" in str(result)


@pytest.mark.parametrize("by", ["kernel", "region", "stream", "thread", "device", "rank", "dtype", "schedule"])
def test_every_group_shares_out_all_of_the_time(by: str) -> None:
    columns = {
        "stream_name": "s",
        "thread_id": 7,
        "region": "forward",
        "device": "cpu",
        "rank": 1,
        "dtype": "fp32",
        "schedule": "tile=(8,8)",
    }
    given = trace(kernel("exp", 0, 10, **columns), kernel("log", 20, 30))
    result = analyze.stalls(given, group_by=by)
    assert [row.total_ms for row in result] == pytest.approx([0.03, 0.01])
    assert sum(row.share_pct for row in result) == pytest.approx(100)


def test_names_from_files_are_shown_and_drawn_as_they_are_and_steer_no_terminal(tmp_path: Path) -> None:
    names = ["$x_{", "[red]a[/red]", ":dog:", "a\x1b[2Jb"]
    result = analyze.stalls(trace(*(kernel(name, 10 * place, 5) for place, name in enumerate(names))))
    shown = str(result)
    for name in (*names[:3], "a?[2Jb"):
        assert name in shown
    assert "\x1b" not in shown
    assert result.plot(tmp_path / "names.png").stat().st_size > 0
