"""The viewer in a real browser: what is shown is what was recorded, and nothing is asked of anybody else."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars
import pytest

from tessera import analyze
from tessera.errors import ProfileError
from tessera.profiling.analyses.operations import operations
from tessera.profiling.analyses.presentation.result import cell
from tessera.profiling.export.chrome_facts import SLICES
from tessera.profiling.export.formats.html import framed
from tessera.profiling.trace.recorded_target import recorded_target
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer import one_file
from tessera.viewer.pages import answers, columns, questions
from tessera.viewer.runs import Run, run_of
from tests.unit.viewer.browsing import PAGES, PATIENCE_MS, Show
from tests.unit.viewer.made import HOSTILE, whole_run


def report(folder: Path, *traces: Trace) -> Path:
    return one_file.write([run_of(each, f"run {place}") for place, each in enumerate(traces)], folder / "report.html")


@pytest.mark.parametrize("door", ["server", "file"])
def test_every_page_opens_without_an_error_and_asks_nobody_else(show: Show, tmp_path: Path, door: str) -> None:
    traces = whole_run(), whole_run()
    shown = show(*traces) if door == "server" else show(file=report(tmp_path, *traces))
    for page in PAGES:
        shown.open(page, run=0, b=1)
        assert shown.page.locator("main").inner_text().strip(), page
        assert shown.page.locator(".error").count() == 0, page
    origin = shown.address.partition("?")[0]
    assert [url for url in shown.asked if not url.startswith((origin, "data:"))] == []
    assert shown.said == []


def test_cells_of_the_kernel_table_are_the_analysis_to_the_digit(show: Show) -> None:
    run = whole_run()
    expected = operations(run, recorded_target(run.metadata))
    shown = show(run)
    shown.open("kernels")
    names = [name for name in expected.headings if name not in expected.missing]
    assert shown.rows() == [[cell(value) for value in row] for row in expected.table.select(names).rows()]
    read = "all => all.map(each => Number(each.dataset.value))"
    values = shown.page.eval_on_selector_all("td[data-column=median_us]", read)
    assert values == expected.table["median_us"].to_list()


@pytest.mark.parametrize(("page", "table", "name"), [("collectives", 0, "collectives"), ("roofline", 1, "roofline")])
def test_cells_of_analyses_are_the_analysis_to_the_digit(show: Show, page: str, table: int, name: str) -> None:
    run = whole_run()
    found = getattr(analyze, name)(run)
    expected = found.analysis() if name == "roofline" else found
    shown = show(run)
    shown.open(page)
    names = [each for each in expected.headings if each not in expected.missing]
    rows = [[cell(value) for value in row] for row in expected.table.select(names).rows()]
    assert sorted(shown.rows(table)) == sorted(rows)


def test_a_window_of_time_narrows_the_table_as_a_filter_does(show: Show) -> None:
    run = whole_run()
    events = run.events.filter(polars.col("start_ns").is_between(50_000, 300_000, closed="left"))
    expected = operations(Trace(events, run.metadata), recorded_target(run.metadata))
    shown = show(run)
    shown.open("kernels", t0=50_000, t1=300_000)
    assert [row[3] for row in shown.rows()] == [cell(calls) for calls in expected.table["calls"].to_list()]


def test_slices_drawn_are_the_slices_recorded(show: Show) -> None:
    run = whole_run()
    recorded = run.events.filter(polars.col("kind").is_in(SLICES)).collect()
    shown = show(run)
    shown.open("timeline")
    found = shown.page.evaluate("window.tessera.counts()")
    assert found["kinds"] == Counter(recorded["kind"].to_list())
    names = recorded.select("operator", "kernel_name").rows()
    assert found["names"] == Counter(operator or name for operator, name in names)
    assert found["duration"] == recorded["dur_ns"].sum()
    assert found["lanes"] == [200, 200]


AT = """([slice, t0, t1]) => {
  const timeline = window.tessera.timeline;
  const part = timeline.parts[0];
  timeline.show(t0 ?? part.data.start[slice] - 20000, t1 ?? part.data.end[slice] + 20000);
  timeline.draw();
  const [x, y] = timeline.place(part, slice);
  const hit = timeline.hit(x, y);
  const scale = window.devicePixelRatio;
  const pixel = (a, b) => [...timeline.canvas.getContext('2d').getImageData(a * scale, b * scale, 1, 1).data].join();
  return { hit: hit.slice, painted: pixel(x, y + 7) !== pixel(x, timeline.height - 2) };
}"""


@pytest.mark.parametrize("zoom", [(None, None), (-1000, 1_200_000), (0, 10_000_000)])
def test_a_slice_is_found_where_it_is_drawn(show: Show, zoom: tuple[int | None, int | None]) -> None:
    shown = show(whole_run())
    shown.open("timeline")
    for slice_ in (0, 2, 199, 200, 399):
        found = shown.page.evaluate(AT, [slice_, *zoom])
        assert found["painted"], (slice_, zoom)
        if zoom[1] is None:
            assert found["hit"] == slice_


def test_below_a_pixel_busy_shares_sum_to_the_slices(show: Show) -> None:
    kernels = frame(
        {
            "kind": ["kernel"] * 5000,
            "operator": ["k"] * 5000,
            "start_ns": list(range(0, 50_000, 10)),
            "dur_ns": [4] * 5000,
        }
    )
    shown = show(Trace(kernels.lazy(), {}))
    shown.open("timeline")
    shares = shown.page.evaluate(
        """() => {
          const timeline = window.tessera.timeline;
          const heights = [];
          const recording = { fillRect: (x, y, w, h) => heights.push(h), fillText() {}, strokeRect() {} };
          timeline.width = 500;
          timeline.show(0, 50000);
          window.tessera.paintRow(timeline, recording, timeline.lines[0]);
          return heights.map(height => height / 16);
        }"""
    )
    assert len(shares) == 500
    assert max(shares) <= 1
    assert sum(shares) * 100 == pytest.approx(20_000)


@pytest.mark.parametrize("door", ["server", "file"])
def test_hostile_names_do_nothing_and_are_shown_whole(show: Show, tmp_path: Path, door: str) -> None:
    run = whole_run(HOSTILE)
    shown = show(run, run) if door == "server" else show(file=report(tmp_path, run, run))
    for page in PAGES:
        shown.open(page, run=0, b=1)
        assert shown.page.locator("main img, main script, #hit").count() == 0, page
    shown.open("kernels")
    told = {row[0] for row in shown.rows()}
    assert told == {name.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd") for name in HOSTILE}
    assert "hit" not in shown.page.title()
    assert shown.said == []


def test_a_link_shows_the_same_again(show: Show) -> None:
    shown = show(whole_run())
    shown.open("timeline", t0=50_000, t1=90_000, q="soft", sel="0:7")
    first = shown.page.evaluate("[window.tessera.timeline.t0, window.tessera.timeline.selected.slice, location.hash]")
    shown.page.goto("about:blank")
    shown.page.goto(shown.address.partition("?")[0] + first[2])
    shown.page.wait_for_function(
        "() => document.querySelector('main')?.dataset.ready === 'timeline'", timeout=PATIENCE_MS
    )
    again = shown.page.evaluate("[window.tessera.timeline.t0, window.tessera.timeline.selected.slice, location.hash]")
    assert again == first
    assert first[:2] == [50_000, 7]


def test_the_way_back_from_a_point_leads_to_the_roofline(show: Show) -> None:
    shown = show(whole_run())
    shown.open("roofline")
    before = shown.page.evaluate("location.hash")
    shown.page.locator("svg a[data-kernel=softmax]").first.focus()
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_function(
        "() => document.querySelector('main').dataset.ready === 'kernels'", timeout=PATIENCE_MS
    )
    assert shown.page.evaluate("location.hash") != before
    shown.page.go_back()
    shown.page.wait_for_function(
        "() => document.querySelector('main').dataset.ready === 'roofline'", timeout=PATIENCE_MS
    )
    assert shown.page.evaluate("location.hash") == before
    assert shown.page.locator("svg a[data-kernel=softmax]").count()


def test_the_keyboard_alone_reaches_a_slice(show: Show) -> None:
    shown = show(whole_run())
    shown.open("timeline")
    shown.page.locator("canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "f"):
        shown.page.keyboard.press(key)
    shown.page.wait_for_function("() => window.tessera.timeline.selected !== null")
    told = shown.page.locator("p[aria-live]").inner_text()
    assert "starts at" in told
    shown.page.keyboard.press("t")
    shown.page.locator("h2", has_text="Slices in view").wait_for()


def test_what_is_told_late_of_a_slice_leaves_a_table_that_was_asked_for_since(show: Show) -> None:
    shown = show(whole_run())
    shown.open("timeline")
    held: list[Any] = []
    shown.page.route("**/event*", lambda route: held.append(route))  # noqa: PLW0108 - playwright asks for a function
    shown.page.locator("canvas").focus()
    for key in ("ArrowRight", "t"):
        shown.page.keyboard.press(key)
    shown.page.locator("h2", has_text="Slices in view").wait_for()
    with shown.page.expect_response("**/event*"):
        held[0].continue_()
    shown.page.wait_for_timeout(100)
    assert shown.page.locator("h2", has_text="Slices in view").is_visible()


def test_the_keyboard_alone_opens_a_row(show: Show) -> None:
    shown = show(whole_run())
    shown.open("kernels")
    shown.page.locator("tbody tr[tabindex]").nth(1).focus()
    shown.page.keyboard.press("Enter")
    shown.page.locator("figure svg").nth(1).wait_for(timeout=PATIENCE_MS)
    counts = shown.page.eval_on_selector_all("rect[data-calls]", "all => all.map(each => Number(each.dataset.calls))")
    assert sum(counts) == 40
    assert shown.page.locator("dd", has_text="model.py").count() == 1


def test_an_empty_session_offers_its_overview_and_says_what_to_do(show: Show) -> None:
    shown = show(Trace(frame({}).lazy(), {"duration_ns": 1000, "recorded": 0, "launched": 0}))
    shown.open("overview")
    assert "no kernel ran while this was recorded" in shown.page.locator("main").inner_text()
    assert shown.page.locator("nav a").all_inner_texts() == ["Overview"]
    assert shown.said == []


def test_what_a_page_cannot_show_is_said_there(show: Show) -> None:
    run = whole_run()
    shown = show(Trace(run.events, {**run.metadata, "target": {"name": "another", "arch": "z"}, "ceilings": None}))
    shown.open("roofline")
    assert "E_ARGUMENT" in shown.page.locator("[role=alert]").inner_text()


@pytest.mark.parametrize("page", ["overview", "timeline", "kernels", "roofline"])
def test_a_page_says_what_it_would_take_too_much_memory_for(show: Show, page: str) -> None:
    shown = show(whole_run(), max_bytes=5e3)
    shown.open(page)
    told = shown.page.locator("[role=alert]").inner_text()
    assert "events need about" in told
    assert "tessera-prof view --max-memory" in told


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_is_the_system_s(browser: Any, show: Show, theme: str) -> None:
    shown = show(whole_run())
    shown.page.emulate_media(color_scheme=theme)
    shown.page.reload()
    shown.open("overview")
    assert shown.page.evaluate("document.documentElement.dataset.theme") == theme


def test_a_notebook_shows_the_report_in_a_frame_whose_links_work(show: Show, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.set_content(f"<!doctype html><p>a notebook</p>{framed(whole_run())}")
    frame_ = page.frame_locator("iframe")
    frame_.locator("main[data-ready=overview]").wait_for(timeout=PATIENCE_MS)
    frame_.get_by_role("link", name="Roofline", exact=True).click()
    frame_.locator("main[data-ready=roofline]").wait_for(timeout=PATIENCE_MS)
    assert failed == []
    context.close()


def test_code_stands_beside_that_of_another_kernel_line_by_line(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [{"Tile IR": "same\nfirst\nend"}, {"Tile IR": "same\nsecond\nend"}]
    made = [{"texts": each, "target": "a CPU", "version": "1", "estimate": None, "recorded": "it"} for each in texts]
    monkeypatch.setitem(questions._OF_ONE, "code", lambda run, asked: made[int(asked["program"])])
    shown = show(whole_run())
    shown.open("code")
    shown.page.get_by_label("beside").select_option("1")
    shown.page.locator("pre.code .added").wait_for(timeout=PATIENCE_MS)
    assert shown.page.locator("pre.code").inner_text().splitlines() == ["  same", "- first", "+ second", "  end"]
    assert shown.said == []


def test_what_is_zoomed_to_is_shown_slice_by_slice(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "packed", partial(columns.packed, most=60))
    run = whole_run()
    t0, t1 = 100_000, 200_000
    touched = run.events.filter(
        polars.col("kind").is_in(SLICES)
        & (polars.col("start_ns") < t1)
        & (polars.col("start_ns") + polars.col("dur_ns") > t0)
    ).collect()
    assert len(touched) <= 60
    shown = show(run)
    shown.open("timeline")
    assert "stand as sums" in shown.page.locator("main").inner_text()
    shown.page.evaluate("([t0, t1]) => window.tessera.timeline.show(t0, t1)", [t0, t1])
    shown.page.wait_for_function("() => window.tessera.timeline.parts[0].span !== null", timeout=PATIENCE_MS)
    head = shown.page.evaluate("window.tessera.timeline.parts[0].data.head")
    assert (head["n"], head["summed"]) == (len(touched), 0)
    shown.page.evaluate("window.tessera.timeline.select(window.tessera.timeline.parts[0], 3)")
    shown.page.locator("main section dl").wait_for(timeout=PATIENCE_MS)
    shown.page.evaluate("window.tessera.timeline.show(...window.tessera.timeline.whole)")
    shown.page.wait_for_function("() => window.tessera.timeline.parts[0].span === null", timeout=PATIENCE_MS)
    assert shown.said == []


def test_the_overview_is_shown_before_its_tables_are_there(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()

    def refused(run: Run, asked: Mapping[str, str]) -> dict[str, Any]:
        assert seen.wait(PATIENCE_MS / 1000)
        raise ProfileError("more memory than is allowed")

    monkeypatch.setattr(answers, "ANSWERS", {**answers.ANSWERS, "kernels": refused})
    shown = show(whole_run())
    shown.page.locator("main[data-shown=overview][data-ready=''] .bar[data-rank='0']").wait_for(timeout=PATIENCE_MS)
    seen.set()
    shown.await_page("overview")
    assert "more memory than is allowed" in shown.page.locator("main .error").inner_text()
    assert len(shown.rows()) > 0, "advice is there without the kernels"
