"""The timeline in a real browser: search, arrows, sums, counters, colours, and two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars
import pytest

from tessera.profiling.export.formats import parquet
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer import one_file
from tessera.viewer.runs import run_of
from tests.unit.viewer.browsing import PATIENCE_MS, Show, Shown
from tests.unit.viewer.made import whole_run

SLOW = "(a+)+$"
"""Takes ages for a name of many a and one b."""


def found(shown: Shown) -> Any:
    """What the header says of the search."""
    return shown.page.locator("header span[aria-live]")


def launched() -> Trace:
    """A call of the host that launches two kernels on a device, and a kernel that nobody launched."""
    return Trace(
        frame(
            {
                "kind": ["operator", "kernel", "kernel", "kernel"],
                "kernel_name": ["cudaLaunchKernel", "first", "second", "alone"],
                "start_ns": [0, 1000, 2000, 3000],
                "dur_ns": [500, 800, 800, 800],
                "device": ["cpu", "cuda:0", "cuda:0", "cuda:0"],
                "thread_id": [1, None, None, None],
                "stream_id": [0, 7, 7, 7],
                "correlation": [9, 9, 9, 10],
            }
        ).lazy()
    )


@pytest.mark.parametrize("door", ["server", "file"])
def test_a_regular_expression_finds_names_and_their_time(show: Show, tmp_path: Path, door: str) -> None:
    run = whole_run()
    own = run.events.collect()
    wanted = own.filter(own["operator"].is_in(["softmax", "norm"]))
    file = one_file.write([run_of(run, "run")], tmp_path / "report.html") if door == "file" else None
    shown = show(file=file) if file else show(run)
    shown.open("timeline")
    shown.page.locator("#search").fill("^(soft|no).*[mx]$")
    found(shown).filter(has_text=f"{len(wanted)} hits").wait_for(timeout=PATIENCE_MS)
    assert f"{int(wanted['dur_ns'].sum()) / 1e3:.0f} \u00b5s" in found(shown).inner_text()
    assert shown.page.evaluate("window.tessera.timeline.hits.total") == wanted["dur_ns"].sum()
    shown.page.locator("#search").press("Enter")
    shown.page.locator("#search").press("Enter")
    assert shown.page.evaluate("window.tessera.timeline.at") == 1
    shown.page.get_by_role("button", name="hits").click()
    assert shown.page.locator("h2", has_text=f"{len(wanted)} hits").count() == 1
    assert shown.said == []


def test_what_is_no_regular_expression_is_said(show: Show) -> None:
    shown = show(whole_run())
    shown.open("timeline")
    shown.page.locator("#search").fill("soft(")
    found(shown).filter(has_text="Unterminated group").wait_for(timeout=PATIENCE_MS)
    assert shown.said == []


def test_an_expression_that_takes_too_long_is_given_up_and_the_page_goes_on(show: Show) -> None:
    shown = show(whole_run(["a" * 40 + "b"]))
    shown.open("timeline")
    shown.page.locator("#search").fill(SLOW)
    found(shown).filter(has_text="takes longer than 1 s").wait_for(timeout=PATIENCE_MS)
    shown.page.locator("#search").fill("aab$")
    found(shown).filter(has_text="200 hits").wait_for(timeout=PATIENCE_MS)


def test_the_search_narrows_tables_and_is_kept_in_the_address(show: Show) -> None:
    shown = show(whole_run())
    shown.open("kernels", q="^mat")
    assert [row[0] for row in shown.rows()] == ["matmul", "matmul"]
    assert found(shown).inner_text() == "2 of 5 rows"


def test_arrows_lead_from_a_launch_to_what_it_launched(show: Show) -> None:
    shown = show(launched())
    shown.open("timeline")
    names = """() => {
      const { timeline } = window.tessera;
      const { data } = timeline.parts[0];
      return timeline.arrows().map((pair) => pair.map((slice) => data.head.names[data.name[slice]]));
    }"""
    select = """name => {
      const { timeline } = window.tessera;
      const { data } = timeline.parts[0];
      const slices = [...data.name.keys()];
      timeline.select(timeline.parts[0], slices.find((slice) => data.head.names[data.name[slice]] === name));
    }"""
    shown.page.evaluate(select, "cudaLaunchKernel")
    assert shown.page.evaluate(names) == [["cudaLaunchKernel", "first"], ["cudaLaunchKernel", "second"]]
    assert "launches 2 slices" in shown.page.locator("p[aria-live]").inner_text()
    shown.page.evaluate(select, "second")
    assert shown.page.evaluate(names) == [["cudaLaunchKernel", "second"]]
    assert "launched by cudaLaunchKernel 2.00 \u00b5s before" in shown.page.locator("p[aria-live]").inner_text()
    colors = """() => {
      const { timeline } = window.tessera;
      const { data } = timeline.parts[0];
      const at = (x, y) => [...timeline.canvas.getContext('2d')
        .getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data].join();
      const y = timeline.place(timeline.parts[0], timeline.selected.slice)[1];
      const x = ((data.start[timeline.selected.slice] - timeline.t0) * timeline.width) / (timeline.t1 - timeline.t0);
      return [at(x - 3, y), at(2, timeline.height - 2)];
    }"""
    shown.page.evaluate("window.tessera.timeline.show(900, 2100)")
    shown.page.evaluate(select, "first")
    tip, background = shown.page.evaluate(colors)
    assert tip != background
    shown.page.evaluate(select, "alone")
    assert shown.page.evaluate(names) == []


def test_shift_and_click_adds_slices_and_counts_overlapping_time_once(show: Show) -> None:
    events = frame(
        {
            "kind": ["kernel"] * 3,
            "operator": ["a", "b", "c"],
            "start_ns": [0, 500_000, 2_000_000],
            "dur_ns": [1_000_000, 1_000_000, 1_000_000],
            "thread_id": [1, 2, 1],
        }
    )
    shown = show(Trace(events.lazy()))
    shown.open("timeline")
    places = shown.page.evaluate(
        "[0, 1, 2].map((slice) => window.tessera.timeline.place(window.tessera.timeline.parts[0], slice))"
    )
    for x, y in places:
        shown.page.locator("canvas").click(position={"x": x, "y": y}, modifiers=["Shift"])
    told = shown.page.locator("p[aria-live]").inner_text()
    assert told == "3 slices: 3.00 ms together, 2.50 ms in which any of them ran"


def test_counters_stand_below_the_lanes(show: Show) -> None:
    run = whole_run()
    shown = show(run)
    shown.open("timeline")
    read = "window.tessera.timeline.strips.map((strip) => [strip.series.name, strip.series.values.length])"
    assert shown.page.evaluate(read) == [["loss", 2]]
    below = "Math.max(...window.tessera.timeline.lines.map((line) => line.y)) < window.tessera.timeline.strips[0].y"
    assert shown.page.evaluate(below)
    shown.page.get_by_role("button", name="counters").click()
    assert shown.page.evaluate(read) == []


def test_colours_say_how_near_the_bound_each_slice_is(show: Show) -> None:
    shown = show(whole_run())
    shown.open("timeline", color="bound")
    works = shown.page.evaluate("window.tessera.timeline.parts[0].data.head.works")
    least = {work["least_us"] for work in works if work["least_us"] is not None}
    assert max(least) == pytest.approx(4e6 / 200e9 * 1e6)
    assert "100 % of the bound or more" in shown.page.locator(".legend").first.inner_text()
    shown.page.get_by_label("colour by").select_option("region")
    assert "part 0" in shown.page.locator(".legend").first.inner_text()


def test_a_second_run_is_moved_so_that_both_begin_a_step_at_once(show: Show) -> None:
    first = whole_run()
    later = Trace(first.events.with_columns(polars.col("start_ns") + 7_000_000), first.metadata)
    shown = show(first, later)
    shown.open("timeline", run=0, b=1)
    begins = "window.tessera.timeline.parts.map((part) => part.data.start[0])"
    before = shown.page.evaluate(begins)
    assert before[1] - before[0] == 7_000_000
    shown.page.get_by_label("align at").select_option("step 3")
    after = shown.page.evaluate(begins)
    assert after[0] == after[1] == before[0]


def test_a_trace_that_comes_while_the_page_is_open_is_told_of(show: Show, tmp_path: Path) -> None:
    parquet.write(whole_run(), tmp_path / "a.parquet")
    shown = show(folder=tmp_path)
    shown.open("overview")
    parquet.write(whole_run(), tmp_path / "a.parquet")
    shown.page.get_by_role("button", name="reload").wait_for(timeout=PATIENCE_MS)
    shown.page.get_by_role("button", name="reload").click()
    shown.await_page("overview")
    assert shown.said == []


def test_perfetto_gets_the_trace_once_it_answers(show: Show) -> None:
    shown = show(whole_run())
    stub = """<script>onmessage = (event) => {
      if (event.data === 'PING') event.source.postMessage('PONG', event.origin);
      else window.got = event.data.perfetto;
    };</script>"""
    context = shown.page.context
    context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body=stub, content_type="text/html"))
    shown.open("timeline")
    with context.expect_page() as opened:
        shown.page.get_by_role("button", name="open in Perfetto").click()
    other = opened.value
    other.wait_for_function("window.got", timeout=PATIENCE_MS)
    unpacked = """async () => {
      const stream = new Blob([window.got.buffer]).stream().pipeThrough(new DecompressionStream('gzip'));
      const told = JSON.parse(await new Response(stream).text());
      return told.traceEvents.filter((each) => each.cat === 'kernel').length;
    }"""
    assert other.evaluate(unpacked) == 200
    found(shown).filter(has_text="Perfetto has the trace").wait_for(timeout=PATIENCE_MS)


def test_a_report_in_one_file_gives_its_slices_as_a_chrome_trace(show: Show, tmp_path: Path) -> None:
    from tessera.profiling.trace import reading

    run = whole_run()
    shown = show(file=one_file.write([run_of(run, "run")], tmp_path / "report.html"))
    shown.open("timeline")
    with shown.page.expect_download() as told:
        shown.page.get_by_role("button", name="trace.json.gz").click()
    path = tmp_path / "kept.json.gz"
    told.value.save_as(path)
    recorded = run.events.collect()
    kept = reading.read(path).events.collect()
    for kind in ("kernel", "region", "collective"):
        ours, theirs = recorded.filter(recorded["kind"] == kind), kept.filter(kept["kind"] == kind)
        assert (len(ours), ours["dur_ns"].sum()) == (len(theirs), theirs["dur_ns"].sum()), kind
