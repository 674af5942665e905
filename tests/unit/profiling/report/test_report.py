"""The report: work, rates, and efficiency against ceilings given in the test."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path

import numpy
import pytest

from tessera import profile
from tessera.errors import ProfileError
from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.recording.totals import OperatorTotal
from tessera.profiling.report.bounds import bound
from tessera.profiling.report.operators import OperatorRow, by_operator, totals_of
from tessera.profiling.report.report import HEADINGS, operator_rows, table_of
from tessera.profiling.ring.recorder import Drained
from tessera.profiling.session.sessions import Session
from tessera.profiling.trace.table import Trace, frame
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, MemoryLevel, gpu
from tests.unit.profiling.support import run, two_step_plan

LEVELS = (
    MemoryLevel("L1", 1000, 64, 1),
    MemoryLevel("L2", 100_000, 64, 1),
    MemoryLevel("DRAM", 0, 64, 2),
)
CEILINGS = Ceilings(
    arch="test",
    name="test",
    source="measured",
    compute=(ComputeCeiling("fp32", 1, 100e9), ComputeCeiling("fp32", 2, 200e9), ComputeCeiling("bf16", 1, 200e9)),
    memory=(
        MemoryCeiling("L1", 1, 100e9),
        MemoryCeiling("L2", 1, 50e9),
        MemoryCeiling("DRAM", 1, 10e9),
        MemoryCeiling("DRAM", 1, 12e9, "copy"),
        MemoryCeiling("DRAM", 1, 90e9, "write_nt"),
    ),
)


def facts(flops: float, nbytes: float, dtype: str = "fp32", operator: str = "matmul") -> StepFacts:
    return StepFacts(operator, operator, flops, nbytes, dtype)


def recorded(steps: list[StepFacts], rows: list[tuple[int, int]]) -> Session:
    """A session that holds one record of (step, nanoseconds) per row, of one plan with these facts, on one worker."""
    session = profile.session()
    records = numpy.array(
        [[n + 1, 1000 * n, 1000 * n + taken, 1, step, 1, 7, 0] for n, (step, taken) in enumerate(rows)],
        dtype=numpy.int64,
    )
    session.recording.take(Drained(records, len(rows), 0, 0))
    session.recording._facts[1] = steps
    return session


def least(step: StepFacts) -> tuple[str, float]:
    """What binds the step on one worker, and the bound in microseconds, to a nanosecond's thousandth."""
    found = bound(step, 1, CEILINGS, LEVELS)
    assert found is not None
    return found.binding, round(1e6 * found.seconds, 6)


def test_efficiency_is_the_bounds_share_of_the_time() -> None:
    # 1000 FLOP at 100 GFLOP/s take 10 ns, 500 bytes at 100 GB/s 5 ns; 20 ns were taken.
    (row,) = by_operator(recorded([facts(1000.0, 500.0)], [(0, 20)]).recording.totals(), CEILINGS, LEVELS)
    assert row.efficiency_pct == pytest.approx(50)
    assert row.binding == "compute"
    assert row.gflop_per_s == pytest.approx(50)
    assert row.bandwidth_gbps == pytest.approx(25)
    assert row.latency_ms == pytest.approx(20e-6)
    assert row.gflop == pytest.approx(1e-6)


def test_calls_of_one_operator_are_one_row_in_order_of_appearance() -> None:
    steps = [facts(100.0, 10.0, operator="matmul"), facts(10.0, 100.0, operator="softmax")]
    rows = by_operator(recorded(steps, [(1, 10), (0, 30), (1, 50)]).recording.totals(), CEILINGS, LEVELS)
    assert [(row.operator, row.calls) for row in rows] == [("softmax", 2), ("matmul", 1)]
    assert rows[0].first_ms == pytest.approx(10e-6)
    assert rows[0].latency_ms == pytest.approx(50e-6)  # of sums: the mean without the first call
    assert rows[0].fastest_ms == pytest.approx(10e-6)


def test_two_shapes_of_an_operator_are_two_rows_with_the_first_call_apart() -> None:
    session = recorded(
        [facts(100.0, 10.0), facts(400.0, 40.0)], [(0, 900), (0, 10), (1, 80), (0, 12), (0, 11), (0, 90)]
    )
    small, large = operator_rows(session.trace())
    assert (small.calls, large.calls) == (5, 1)
    assert small.gflop == pytest.approx(100e-9)
    assert small.first_ms == pytest.approx(900e-6)
    assert small.latency_ms == pytest.approx(12e-6)
    assert small.p90_ms == pytest.approx(900e-6)


def test_efficiency_is_not_measured_without_ceilings() -> None:
    (row,) = by_operator(recorded([facts(1000.0, 500.0)], [(0, 20)]).recording.totals(), None, LEVELS)
    assert (row.efficiency_pct, row.binding) == (None, None)


def test_memory_bound_uses_the_nearest_level_that_holds_the_operands() -> None:
    assert least(facts(0.0, 900.0)) == ("L1", 0.009)
    assert least(facts(0.0, 90_000.0)) == ("L2", 1.8)
    # Main memory at the better of reads and copies; pure writes are no kernel's traffic.
    assert least(facts(0.0, 1.2e6)) == ("DRAM", 100.0)


def test_a_level_that_is_slower_than_what_lies_behind_it_does_not_bind() -> None:
    slow = replace(CEILINGS, memory=(MemoryCeiling("L2", 1, 9e9), *CEILINGS.memory[2:]))
    found = bound(facts(0.0, 90_000.0), 1, slow, LEVELS)
    assert found is not None
    assert found.binding == "DRAM"
    assert found.seconds == pytest.approx(90_000.0 / 12e9)


def test_half_precision_without_arithmetic_of_its_own_is_bound_by_single() -> None:
    assert least(facts(1e6, 10.0, "fp16")) == ("compute", 10.0)
    assert least(facts(1e6, 10.0, "bf16")) == ("compute", 5.0)


def test_thread_counts_that_were_not_measured_have_no_bound() -> None:
    assert bound(facts(1e6, 10.0), 3, CEILINGS, LEVELS) is None


def test_report_prints_the_specs_columns(capsys: pytest.CaptureFixture[str], cache_dir: Path) -> None:
    with profile.session() as session:
        run(two_step_plan(), 2)
    session.report()
    printed = capsys.readouterr().out
    assert all(heading in printed for heading in HEADINGS.values())
    assert "add x 2" in printed
    assert "not measured" in printed
    profile.report()
    assert capsys.readouterr().out == printed


def test_a_report_without_kernels_says_so(capsys: pytest.CaptureFixture[str], cache_dir: Path) -> None:
    with profile.session() as session:
        session.mark("nothing ran")
    session.report()
    assert "no plan of Tessera ran meanwhile" in capsys.readouterr().out.replace("\n", " ")


def test_dropped_kernels_are_named_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    session = recorded([facts(1.0, 1.0)], [(0, 5)])
    session.recording.take(Drained(numpy.empty((0, 8), numpy.int64), 3, 2, 1))
    session.report()
    printed = " ".join(capsys.readouterr().out.split())
    assert "4 kernels ran, 1 are recorded" in printed
    assert "2 were overwritten" in printed


def test_summary_has_a_line_per_operator(tmp_path: Path, cache_dir: Path) -> None:
    with profile.session(exporters=[profile.summary(tmp_path / "summary.csv")]):
        run(two_step_plan(), 3)
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["operator"], row["calls"], row["efficiency_pct"]) for row in rows] == [
        ("add", "3", ""),
        ("double", "3", ""),
    ]
    assert float(rows[0]["latency_ms"]) > 0


def test_a_level_without_a_rate_hands_the_bytes_to_the_next_one() -> None:
    """Data sheets of GPUs tell the bandwidth of their main memory alone."""
    h100 = gpu("sm90")
    assert h100.ceilings is not None
    softmax = StepFacts("softmax", "softmax", flops=1.3e6, bytes=2.1e6, dtype="fp32")
    found = bound(softmax, h100.cores, h100.ceilings, h100.memory)
    assert found is not None
    assert found.binding == "HBM"
    assert found.seconds == pytest.approx(2.1e6 / 3.352e12, rel=1e-3)


def test_names_of_a_file_are_neither_markup_nor_escape_sequences() -> None:
    row = OperatorRow("[/bold]\x1b]0;owned\x07", "fp32", 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, None, None)
    text = str(table_of([row], ["[/x]\x1b[2J"]))
    assert "[/bold]?]0;owned?" in text
    assert "[/x]?[2J" in text
    assert "\x1b" not in text


def test_a_file_of_sums_alone_tells_its_operators(tmp_path: Path) -> None:
    path = tmp_path / "sums.parquet"
    with (
        pytest.warns(UserWarning, match="keeps no kernels"),
        profile.session(mode="summary", exporters=[profile.parquet(path)]) as session,
    ):
        run(two_step_plan(), 3)
    rows = by_operator(totals_of(profile.read(path)), None)
    assert [(row.operator, row.calls) for row in rows] == [("add", 3), ("double", 3)]
    assert rows == by_operator(session.recording.totals(), None)


def test_sums_that_are_damaged_are_refused() -> None:
    with pytest.raises(ProfileError, match="are damaged"):
        totals_of(Trace(frame({}).lazy(), {"totals": [{"operator": "add"}]}))


def test_a_million_kinds_of_work_are_held_against_their_bounds_once_each() -> None:
    """Dynamic shapes: what ceilings say of a dtype is not searched for each kind of work."""
    looked_up = []

    class Counted(Ceilings):
        def flop_per_s(self, dtype: str, workers: int) -> float | None:
            looked_up.append(dtype)
            return super().flop_per_s(dtype, workers)

    counted = Counted(**{each.name: getattr(CEILINGS, each.name) for each in fields(CEILINGS)})
    totals = [OperatorTotal("add", "fp32", float(n), 8.0 * n, 1, 0, 1, 1e-6, 1e-6) for n in range(1, 1000)]
    rows = by_operator(totals, counted, LEVELS)
    assert len(rows) == 999
    assert all(row.efficiency_pct is not None for row in rows)
    assert len(looked_up) == 1
