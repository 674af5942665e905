"""Ratios, goals and the tables they end up in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import table
from bench.__main__ import document, parse, save
from bench.results import CaseResult, Figure, Goal, Measurement, SuiteResult

OURS = Measurement("tessera", "ours", "fresh", seconds=1e-3, fastest=9e-4, kept=9, contended=1, error=1e-7)
OURS_OUT = Measurement("tessera out=", "ours", "out", seconds=8e-4, fastest=8e-4, kept=9)
EAGER = Measurement("torch", "eager", "fresh", seconds=2e-3, fastest=2e-3, kept=9)
LIBRARY_OUT = Measurement("MKL", "library", "out", seconds=7.2e-4, fastest=7e-4, kept=9)
ABSENT = Measurement("OpenBLAS", "library", "out", reason="numpy, which carries OpenBLAS, has no bf16")
BEST = Goal("best library", ("library", "eager"), 0.95)
TWICE = Goal("torch as installed", ("eager",), 2.0, "fresh")


def result(*measurements: Measurement) -> CaseResult:
    return CaseResult("matmul fp32 64x64x64", 1, 2 * 64**3, 1 << 16, 5e-4, "compute", measurements, (BEST, TWICE))


def test_a_ratio_compares_the_same_kind_of_memory() -> None:
    found = result(OURS, OURS_OUT, EAGER, LIBRARY_OUT)
    assert found.ratio(EAGER) == pytest.approx(2.0)
    assert found.ratio(LIBRARY_OUT) == pytest.approx(0.9)


def test_a_peer_without_a_counterpart_is_compared_with_what_we_have() -> None:
    assert result(OURS, LIBRARY_OUT).ratio(LIBRARY_OUT) == pytest.approx(0.72)


def test_goals_are_held_against_the_fastest_peer() -> None:
    best, twice = result(OURS, OURS_OUT, EAGER, LIBRARY_OUT, ABSENT).verdicts()
    assert (best.peer, best.met) == ("MKL", False)
    assert best.ratio == pytest.approx(0.9)
    assert (twice.peer, twice.met) == ("torch", True)


def test_a_goal_judged_on_a_busy_machine_says_so() -> None:
    busy = Measurement("torch", "eager", "fresh", seconds=2e-3, kept=2, contended=7)
    found = result(OURS, busy)
    assert [verdict.quiet for verdict in found.verdicts()] == [False, False]
    assert table.goal_sheet([found]).rows[1][-1] == "yes (disturbed)"
    assert table.case_sheet(found).rows[1][-2] == "2/9 disturbed"


def test_an_unmeasured_side_leaves_the_goal_open() -> None:
    assert [verdict.met for verdict in result(EAGER, LIBRARY_OUT).verdicts()] == [None, None]
    assert [verdict.met for verdict in result(OURS, ABSENT).verdicts()] == [None, None]


def test_every_contender_stands_in_the_table_measured_or_not() -> None:
    rows = {row[0]: row for row in table.case_sheet(result(OURS, EAGER, ABSENT)).rows}
    assert rows["tessera"][1:] == ("1 ms", "0.5 GFLOP/s", "50 (compute)", "1.00", "9/10", "1e-07")
    assert rows["torch"][4] == "2.00"
    assert rows["OpenBLAS"][1] == "not measured: numpy, which carries OpenBLAS, has no bf16"


def test_a_figure_shows_its_limit_and_whether_it_holds() -> None:
    figures = [
        Figure("lazy node", "tessera", 1, "us", 1.2, 1.5),
        Figure("lazy node", "torch", 1, "us", None, 1.5, "no torch"),
    ]
    (sheet,) = table.sheets([SuiteResult("overhead", 1, figures=figures)])
    assert sheet.rows[0][3:] == ("1.2 us", "<= 1.5 us", "yes")
    assert sheet.rows[1][3:] == ("not measured: no torch", "<= 1.5 us", "not measured")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (0.45, "450 ms"), (1e-5, "10 us"), (3e-7, "300 ns")]
)
def test_durations_are_readable(seconds: float, shown: str) -> None:
    assert table.duration(seconds) == shown


def test_saved_results_name_machine_versions_and_verdicts(tmp_path: Path) -> None:
    results = [SuiteResult("gemm", 1, [result(OURS, EAGER, ABSENT)])]
    whole = document(results, quick=False)
    data, text = save(whole, table.sheets(results), "all", tmp_path)
    assert save(whole, [], "gemm", tmp_path)[0].stem == f"{data.stem}-gemm"
    found = json.loads(data.read_text())
    assert found["cpu"]
    assert found["versions"]["python"]
    assert found["suites"][0]["cases"][0]["verdicts"][0]["met"] is True
    assert "| OpenBLAS | not measured: numpy" in text.read_text()


def test_thread_counts_can_be_repeated() -> None:
    assert parse(["gemm", "--threads", "1", "--threads", "2"]).threads == [1, 2]
    assert parse(["all"]).threads is None


def test_a_run_that_is_cut_short_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(pool: object, progress: object, quick: bool) -> SuiteResult:
        return SuiteResult("gemm", 1, [result(OURS, EAGER)])

    def interrupted(pool: object, progress: object, quick: bool) -> SuiteResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "SUITES", {"gemm": measured, "fused": interrupted})
    path = tmp_path / "found.json"
    with pytest.raises(KeyboardInterrupt):
        command.main(["all", "--threads", "1", "--json", str(path)])
    (suite,) = json.loads(path.read_text())["suites"]
    assert suite["cases"][0]["measurements"][0]["seconds"] == OURS.seconds
