"""Sessions that kept sums alone, and those that ended in a crash: what is shown of them, and what is said."""

from __future__ import annotations

from pathlib import Path

import polars
import pytest
import torch

from tessera import op, profile
from tessera.profiling.analyses.presentation.result import cell
from tessera.profiling.export.formats import parquet
from tessera.profiling.report import report
from tessera.profiling.trace.table import Trace
from tessera.viewer import one_file
from tessera.viewer.app import Viewer
from tessera.viewer.runs import run_of, runs_at
from tests.unit.viewer.asking import answered, viewer_of
from tests.unit.viewer.browsing import PATIENCE_MS, Show
from tests.unit.viewer.made import whole_run


@pytest.fixture(scope="module")
def summed() -> Trace:
    """A product and a softmax, of which a session kept the sums."""
    x, w = torch.randn(48, 64), torch.randn(64, 80)
    with profile.session(mode="summary") as session:
        for _ in range(5):
            op.softmax(op.matmul(x, w)).eval()
    return session.trace()


def parts(folder: Path) -> None:
    """A run as a session that was killed leaves it."""
    run = whole_run()
    events = run.events.filter(polars.col("rank") == 0).collect()
    for number, own in enumerate((events.head(150), events.slice(150))):
        told = {"ranks": {"0": {"host": "h", "pid": 1, "start_unix_ns": 5}}, "part": number, "open_regions": []}
        metadata = {**run.metadata, **told, "duration_ns": None}
        parquet.write(Trace(own.lazy(), metadata, run.capability), folder / f"part-{number:06}.parquet")


def test_tables_and_roofline_are_of_the_sums(summed: Trace) -> None:
    viewer = viewer_of(summed)
    rows = {row.operator: row for row in report.operator_rows(summed)}
    found = answered(viewer, "/api/kernels?run=0")
    names = [column["name"] for column in found["columns"]]
    told = {row[0]: dict(zip(names, row, strict=True)) for row in found["rows"]}
    assert told.keys() == rows.keys() == {"matmul", "softmax"}
    for name, row in told.items():
        assert row["calls"] == 5
        assert row["total_ms"] == pytest.approx(rows[name].total_ms)
        assert row["median_us"] == pytest.approx(1e3 * rows[name].latency_ms)
    assert "p90_us" not in names
    assert any("means of the calls after the first" in note for note in found["notes"])
    assert sum(row["share_pct"] for row in told.values()) == pytest.approx(100)
    points = answered(viewer, "/api/roofline?run=0&arch=h100")["points"]
    assert {(point["kernel"], point["calls"]) for point in points} == {("matmul", 5), ("softmax", 5)}
    assert answered(viewer, "/api/kernel?run=0&row=0")["calls"] == []


@pytest.mark.parametrize("door", ["server", "file"])
def test_pages_show_the_sums_and_say_why_there_is_no_timeline(
    show: Show, summed: Trace, tmp_path: Path, door: str
) -> None:
    file = one_file.write([run_of(summed, "run")], tmp_path / "report.html") if door == "file" else None
    shown = show(file=file) if file else show(summed)
    shown.open("overview")
    assert "only their sums" in shown.page.locator("main").inner_text()
    assert {row[0] for row in shown.rows()} == {"matmul", "softmax"}
    shown.open("kernels")
    assert [row[3] for row in shown.rows()] == [cell(5)] * 2
    shown.page.locator("tbody tr[tabindex]").first.press("Enter")
    shown.page.get_by_text("only the sums of its calls were kept").wait_for(timeout=PATIENCE_MS)
    shown.open("timeline")
    assert "keeps no kernels" in shown.page.locator("main").inner_text()
    assert shown.said == []


def test_what_a_killed_session_left_is_one_run_that_says_where_it_ends(show: Show, tmp_path: Path) -> None:
    parts(tmp_path)
    (run,) = runs_at(tmp_path)
    assert len(answered(Viewer(lambda: [run]), "/api/overview?run=0")["steps"]) == 20
    shown = show(folder=tmp_path)
    shown.open("overview")
    told = shown.page.locator("main .error").inner_text()
    end = answered(Viewer(lambda: [run]), "/api/overview?run=0")["window"][1]
    assert f"it ends at {end / 1e6:.3g} ms," in told
    assert "the last second" in told
    assert sum(shown.page.evaluate("window.tessera.counts()")["kinds"].values()) == 200
