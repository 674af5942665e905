"""What single pages say, in a real browser: flame graph, lateness, differences, stalls, facts of a run, marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import polars
import pytest

from tessera import analyze
from tessera.profiling.analyses import collectives
from tessera.profiling.analyses.presentation.result import cell
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer import one_file
from tessera.viewer.runs import Run
from tests.unit.viewer.browsing import PATIENCE_MS, Show, Shown
from tests.unit.viewer.made import whole_run

OLD: Final = "delete window.DecompressionStream"
"""What makes a browser one of those that cannot unpack slices."""


def slices(*rows: tuple[str, str, int, int]) -> Trace:
    """Slices of one thread: kind, name, start and duration in microseconds."""
    kinds, names, starts, lengths = zip(*rows, strict=True)
    named = {"kind": kinds, "kernel_name": names, "thread_id": [1] * len(rows)}
    times = {"start_ns": [1000 * each for each in starts], "dur_ns": [1000 * each for each in lengths]}
    return Trace(frame({name: list(values) for name, values in {**named, **times}.items()}).lazy(), {"recorded": 4})


def bars(shown: Shown) -> list[str]:
    """The names of the bars of the flame graph from left to right, the whole and regions left out."""
    read = """all => all
      .map(each => [Number(each.querySelector('rect').getAttribute('x')), each.getAttribute('aria-label')])
      .sort((a, b) => a[0] - b[0]).map(([, label]) => label.split(':')[0])"""
    told: list[str] = shown.page.eval_on_selector_all("svg[aria-label='flame graph'] g", read)
    return [name for name in told if name not in ("all", "outer")]


def moved_to_ranks(run: Trace, late_ns: int, **told: Any) -> Trace:
    """The run with rank 1's events later, and with this said of each of its two ranks."""
    late = polars.when(polars.col("rank") == 1).then(late_ns).otherwise(0)
    ranks = {number: {**about, **told} for number, about in run.metadata["ranks"].items()}
    events = run.events.with_columns(polars.col("start_ns") + late).sort("start_ns")
    return Trace(events, {**run.metadata, "ranks": ranks}, run.capability)


def test_the_flame_graph_stands_by_time_or_by_beginning_and_sums_what_is_found(show: Show) -> None:
    shown = show(
        slices(("region", "outer", 0, 100), ("kernel", "b1", 1, 10), ("kernel", "a1", 20, 30), ("kernel", "b2", 60, 20))
    )
    shown.open("flame")
    assert bars(shown) == ["a1", "b2", "b1"]
    shown.page.get_by_label("order").select_option(label="order: first begun")
    assert bars(shown) == ["b1", "a1", "b2"]
    assert "order=first" in shown.page.evaluate("location.hash")
    shown.page.locator("#search").fill("^b")
    hits = shown.page.locator("header span[aria-live]")
    hits.filter(has_text="2 hits, 30.0 \u00b5s (30.0 %)").wait_for(timeout=PATIENCE_MS)
    shown.page.locator("#search").fill("outer|^b")
    hits.filter(has_text="1 hits, 100 \u00b5s (100 %)").wait_for(timeout=PATIENCE_MS)
    assert shown.said == []


def test_a_click_zooms_into_the_flame_graph_and_the_top_bar_out_of_it(show: Show) -> None:
    shown = show(slices(("region", "outer", 0, 100), ("kernel", "k", 1, 10), ("region", "other", 200, 50)))
    shown.open("flame")
    shown.page.locator("svg g[aria-label^='outer']").press("Enter")
    assert shown.page.locator("svg g[aria-label^='other']").count() == 0
    shown.page.locator("svg g[aria-label^='outer']").press("Enter")
    assert shown.page.locator("svg g[aria-label^='other']").count() == 1


def test_how_late_ranks_come_is_that_of_the_analysis_and_grey_within_the_clocks(show: Show) -> None:
    run = moved_to_ranks(whole_run(), 2_500, uncertainty_ns=2_700)
    expected = collectives.arrivals(collectives.overlapped(run)[0])
    shown = show(run)
    shown.open("collectives")
    read = "all => all.map(each => [Number(each.dataset.late), each.getAttribute('fill')])"
    told = shown.page.eval_on_selector_all("svg[aria-label='ranks by call'] rect", read)
    assert [late for late, _ in told] == expected["late_us"].to_list()
    assert {late for late, _ in told} == {0.0, 3.0}
    assert all(color != "#999999" for _, color in told)
    unsure = moved_to_ranks(whole_run(), 2_000, uncertainty_ns=2_700)
    other = show(unsure)
    other.open("collectives")
    greys = other.page.eval_on_selector_all("svg[aria-label='ranks by call'] rect", read)
    assert {(late, color == "#999999") for late, color in greys} == {(0.0, False), (2.5, True)}
    assert "grey: within 2.70 \u00b5s" in other.page.locator("main").inner_text()


def test_a_line_of_constant_bandwidth_crosses_the_heat_map(show: Show) -> None:
    run = whole_run()
    cells = collectives.cells(collectives.overlapped(run)[0])
    fastest = max(2.0 ** (row["log2_bytes"] - row["log2_us"]) / 1e3 for row in cells.to_dicts())
    shown = show(run)
    shown.open("collectives")
    assert shown.page.locator("svg polyline.roof title").text_content() == f"{fastest:.3g} GB/s"


def test_the_clocks_of_several_ranks_stand_in_the_header(show: Show) -> None:
    shown = show(moved_to_ranks(whole_run(), 0, uncertainty_ns=1_500))
    shown.open("overview")
    assert "clocks of 2 ranks agree within 1.50 \u00b5s" in shown.page.locator("header").inner_text()
    untold = show(whole_run())
    untold.open("overview")
    assert "clocks of 2 ranks: not compared" in untold.page.locator("header").inner_text()


def test_the_parts_of_a_difference_sum_to_it(show: Show) -> None:
    run = whole_run()
    slower = polars.when(polars.col("operator") == "gelu").then(4 * polars.col("dur_ns"))
    faster = polars.when(polars.col("operator") == "norm").then(polars.col("dur_ns") // 2)
    changed = polars.coalesce(slower, faster, "dur_ns")
    other = Trace(run.events.with_columns(dur_ns=changed), run.metadata)
    lost = analyze.compare(run, other).to_polars().filter(polars.col("ratio") > 0)
    shown = show(run, other)
    shown.open("compare", run=0, b=1)
    title = "svg[aria-label='what makes the difference'] rect"
    told = shown.page.eval_on_selector_all(title, "all => all.map(each => Number(each.dataset.ms))")
    assert told[-1] == pytest.approx(sum(told[:-1])) == pytest.approx(lost["lost_ms"].sum())
    assert [abs(each) for each in told[:-1]] == sorted(map(abs, lost["lost_ms"].to_list()), reverse=True)
    assert f"{abs(told[-1]):.3f}"[:4] in shown.page.locator("main").inner_text()


def test_memory_stalls_are_bars_where_they_were_counted(show: Show) -> None:
    run = whole_run()
    stalled = polars.when(polars.col("operator") == "gelu").then(75.0).when(polars.col("operator") == "norm").then(20.0)
    shown = show(Trace(run.events.with_columns(mem_stall_pct=stalled), run.metadata))
    shown.open("counters")
    labels = shown.page.eval_on_selector_all(".bar", "all => all.map(each => each.getAttribute('aria-label'))")
    assert sorted(labels) == ["gelu: 75.0 % waits for memory", "norm: 20.0 % waits for memory"]
    widths = shown.page.locator(".bar[aria-label^=gelu] span").evaluate_all("all => all.map(each => each.style.width)")
    assert widths == ["75%", "25%"]
    uncounted = show(run)
    uncounted.open("counters")
    assert uncounted.page.locator(".bar").count() == 0


def test_the_overview_tells_versions_command_and_threads_and_leads_from_advice_to_rows(show: Show) -> None:
    run = whole_run()
    told = {"versions": {"tessera": "1.2.3", "torch": "9.8"}, "command": "python train.py --fast", "threads": 2}
    run = Trace(run.events, {**run.metadata, **told}, run.capability)
    subjects = analyze.advise(run).to_polars()["subject"].to_list()
    shown = show(run)
    shown.open("overview")
    facts = dict(
        zip(shown.page.locator("dt").all_inner_texts(), shown.page.locator("dd").all_inner_texts(), strict=True)
    )
    assert facts["versions"] == "tessera 1.2.3, torch 9.8"
    assert facts["command"] == "python train.py --fast"
    assert facts["threads"] == cell(2)
    link = shown.page.get_by_role("link", name=re.compile("^rows of ")).first
    name = link.inner_text().removeprefix("rows of ")
    assert any(str(subject).startswith(name) for subject in subjects)
    link.click()
    shown.await_page("kernels")
    assert {row[0] for row in shown.rows()} == {name}


def test_a_browser_that_cannot_unpack_slices_is_told_which_ones_can(show: Show) -> None:
    shown = show(whole_run())
    shown.page.add_init_script(OLD)
    shown.page.reload()
    shown.open("timeline")
    alert = shown.page.locator("[role=alert]").inner_text()
    assert "Chromium 80, Firefox 113, Safari 16.4" in alert
    shown.open("kernels")
    assert len(shown.rows()) == 5


def test_a_key_marks_the_time_of_the_selected_slice_and_takes_the_mark_away(show: Show) -> None:
    shown = show(whole_run())
    shown.open("timeline")
    shown.page.locator("canvas").focus()
    shown.page.keyboard.press("m")
    marked = "window.tessera.timeline.measured"
    assert shown.page.evaluate(marked) is None
    shown.page.evaluate("window.tessera.timeline.select(window.tessera.timeline.parts[0], 2)")
    shown.page.keyboard.press("m")
    span = shown.page.evaluate("(({ data }) => [data.start[2], data.end[2]])(window.tessera.timeline.parts[0])")
    assert shown.page.evaluate(marked) == span
    assert "slices begin there and take" in shown.page.locator("p[aria-live]").inner_text()
    shown.page.keyboard.press("m")
    assert shown.page.evaluate(marked) is None


def test_marks_of_a_session_are_told_with_their_names(show: Show) -> None:
    run = whole_run()
    recorded = run.events.filter(polars.col("kind") == "mark").collect()
    shown = show(run)
    shown.open("timeline")
    told = shown.page.evaluate("window.tessera.timeline.parts[0].data.head.marks")
    assert [(mark["name"], mark["at"]) for mark in told] == recorded.select("kernel_name", "start_ns").rows()


def test_a_redacted_report_names_neither_host_nor_command(tmp_path: Path) -> None:
    found = whole_run()
    told = {**found.metadata, "command": "python /home/me/secret.py", "thread_names": {"7": "me"}}
    run = Run("node7-1-0/node8.parquet", lambda: Trace(found.events, told, found.capability))
    page = one_file.write([run], tmp_path / "a.html", redact=True).read_text()
    assert not re.search("node7|node8|secret|thread_names", page)
    assert "host-1-0/host.parquet" in page
    whole = one_file.write([run], tmp_path / "b.html").read_text()
    assert all(each in whole for each in ("node7", "node8", "secret.py"))
