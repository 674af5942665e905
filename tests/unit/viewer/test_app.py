"""What the viewer answers: the numbers of the analyses, and what went wrong."""

from __future__ import annotations

import gzip
import json
import math
import os
import threading
from pathlib import Path

import pytest

from tessera import analyze, profile
from tessera.profiling.analyses.operations import operations
from tessera.profiling.export.formats import parquet
from tessera.profiling.trace.recorded_target import recorded_target
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer import memory, runs
from tessera.viewer.app import Viewer
from tessera.viewer.pages import budget
from tessera.viewer.runs import Run, runs_at
from tests.unit.viewer.asking import answered, asked, viewer_of
from tests.unit.viewer.made import whole_run


@pytest.mark.parametrize("question", ["stalls", "memory", "collectives", "power", "divergence", "advise"])
def test_tables_are_those_of_the_analyses(question: str) -> None:
    run = whole_run()
    expected = getattr(analyze, question)(run)
    found = answered(viewer_of(run), f"/api/{question}?run=0")
    names = [column["name"] for column in found["columns"]]
    assert found["rows"] == json.loads(json.dumps(expected.table.select(names).rows()))
    assert found["notes"] == list(expected.notes)
    assert {name for names in found["missing"].values() for name in names} == {
        expected.headings.get(name, name) for name in expected.missing
    }


def test_kernels_of_a_window_are_those_that_began_in_it() -> None:
    run = whole_run()
    found = answered(viewer_of(run), "/api/kernels?run=0&t0=50000&t1=150000&rank=1")
    events = run.events.collect()
    kept = events.filter(events["start_ns"].is_between(50000, 150000, closed="left") & (events["rank"] == 1))
    expected = operations(Trace(kept.lazy(), run.metadata), recorded_target(run.metadata))
    assert sum(row[3] for row in found["rows"]) == (kept["kind"] == "kernel").sum() > 0
    assert [row[0] for row in found["rows"]] == expected.table["kernel"].to_list()


def test_the_roofline_has_the_points_of_the_analysis_and_the_recorded_roofs() -> None:
    run = whole_run()
    found, expected = answered(viewer_of(run), "/api/roofline?run=0"), analyze.roofline(run)
    assert [point["efficiency_pct"] for point in found["points"]] == [row.efficiency_pct for row in expected]
    assert found["measured"] == {"source": "measured", "date": "2026-01-01"}
    assert found["compute"][0] == {"dtype": "fp32", "gflop_per_s": 200.0}
    for point in found["points"]:
        assert point["p10_us"] <= point["median_us"] <= point["p90_us"]
        assert point["saved_ms"] == pytest.approx(max(0, point["total_ms"] * (1 - point["efficiency_pct"] / 100)))


def test_two_runs_are_compared_as_analyze_does_and_their_machines_differ() -> None:
    run = whole_run()
    other = Trace(run.events, {**run.metadata, "target": {"name": "another"}})
    found = answered(viewer_of(run, other), "/api/compare?a=0&b=1")
    assert [row[0] for row in found["rows"]] == analyze.compare(run, other).table["name"].to_list()
    assert "device: a has a machine, b has another" in found["differences"]


def test_an_event_is_told_in_full_among_its_like() -> None:
    application = viewer_of(whole_run())
    found = answered(application, "/api/event?run=0&slice=5")
    assert found["calls"] >= found["nth"] >= 1
    assert found["event"]["kind"] in ("kernel", "region", "collective")
    assert asked(application, "/api/event?run=0&slice=400")[0] == 400
    assert asked(application, "/api/event?run=0&slice=x")[0] == 400


def test_the_trace_can_be_taken_away_as_a_timeline() -> None:
    status, headers, body = asked(viewer_of(whole_run()), "/api/chrome?run=0")
    assert (status, headers["Content-Type"]) == (200, "application/gzip")
    assert len(json.loads(gzip.decompress(body))["traceEvents"]) > 400


def test_the_list_of_runs_says_what_was_recorded() -> None:
    (run,) = answered(viewer_of(whole_run()), "/api/runs")
    assert (run["run"], run["name"], run["recorded"], run["ranks"], run["device"]) == (0, "run 0", 200, 2, "a machine")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/nothing?run=0", 404),
        ("/api/overview?run=7", 404),
        ("/api/overview?run=-1", 404),
        ("/api/overview?run=../etc", 404),
        ("/static/../../../etc/passwd", 404),
        ("/%2e%2e/%2e%2e/app.py", 404),
        ("/app.py", 404),
        ("/api/kernels?run=0&t0=x&t1=1", 400),
        ("/api/roofline?run=0&arch=sm1", 400),
        ("/?" + "&".join(f"a{number}=1" for number in range(99)), 400),
    ],
)
def test_what_there_is_not_is_an_error_in_json(path: str, status: int) -> None:
    found, headers, body = asked(viewer_of(whole_run()), path)
    assert (found, headers["Content-Type"]) == (status, "application/json")
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_answered(method: str) -> None:
    assert asked(viewer_of(whole_run()), "/api/runs", method)[0] == 405


def test_a_head_has_no_body() -> None:
    status, headers, body = asked(viewer_of(whole_run()), "/api/overview?run=0", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


def test_an_empty_session_has_an_overview() -> None:
    application = viewer_of(Trace(frame({}).lazy(), {"duration_ns": 5}))
    assert answered(application, "/api/overview?run=0")["kernels"] == 0
    assert asked(application, "/api/roofline?run=0")[0] == 400


def test_a_damaged_file_is_an_error_of_its_run_alone(tmp_path: Path) -> None:
    parquet.write(whole_run(), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    application = Viewer(lambda: runs_at(tmp_path))
    good, bad = answered(application, "/api/runs")
    assert (good["recorded"], "no whole Parquet file" in bad["error"]) == (200, True)
    assert asked(application, "/api/overview?run=1")[0] == 422
    assert asked(application, "/api/overview?run=0")[0] == 200


def test_a_file_that_changes_is_gone_until_the_page_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write(whole_run(), path)
    application = Viewer(lambda: runs_at(path))
    assert asked(application, "/api/overview?run=0")[0] == 200
    parquet.write(Trace(frame({}).lazy(), {"recorded": 0}), path)
    assert asked(application, "/api/overview?run=0")[0] == 410
    assert answered(application, "/api/runs")[0]["recorded"] == 0
    assert answered(application, "/api/overview?run=0")["kernels"] == 0


def test_new_files_of_a_folder_appear(tmp_path: Path) -> None:
    parquet.write(whole_run(), tmp_path / "a.parquet")
    application = Viewer(lambda: runs_at(tmp_path))
    assert [run["name"] for run in answered(application, "/api/runs")] == [tmp_path.name]
    parquet.write(whole_run(), tmp_path / "b.parquet")
    names = [f"{tmp_path.name}/{name}" for name in ("a.parquet", "b.parquet")]
    assert [run["name"] for run in answered(application, "/api/runs")] == names


def test_a_folder_of_ranks_is_one_run_and_folders_below_are_others(tmp_path: Path) -> None:
    for rank in range(2):
        found = Trace(whole_run().events, {"ranks": {str(rank): {"host": "h", "start_unix_ns": 5}}})
        parquet.write(found, tmp_path / f"rank{rank}.parquet")
    (tmp_path / "exp").mkdir()
    with profile.session(tensorboard_dir=tmp_path / "exp"):
        pass
    assert [run.name for run in runs_at(tmp_path)] == [tmp_path.name, f"{tmp_path.name}/exp"]


def test_who_asks_for_the_same_meanwhile_waits_for_one_answer() -> None:
    run, made = Run("a", whole_run), []

    def slowly(trace: Trace) -> int:
        made.append(len(trace.events.collect()))
        return made[-1]

    threads = [threading.Thread(target=run.answer, args=("x", slowly)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_run_forgets_old_answers() -> None:
    run, made = Run("a", whole_run), list[int]()
    for key in (*range(100), 99, 0):
        run.answer(key, lambda trace, key=key: made.append(key))  # type: ignore[misc]
    assert made == [*range(100), 0]


@pytest.mark.parametrize("question", ["columns", "kernels", "overview", "roofline"])
def test_what_would_take_too_much_memory_is_refused_with_a_sentence(question: str) -> None:
    application = viewer_of(whole_run(), max_bytes=5e3)
    status, _, body = asked(application, f"/api/{question}?run=0")
    told = json.loads(body)["error"]
    assert status == 422
    assert "events need about" in told["message"]
    assert "--max-memory" in told["hints"][0]
    assert ("a window of time has fewer events" in told["hints"]) is (question not in budget.WHOLE)


def test_a_window_with_fewer_events_is_answered_where_the_whole_run_is_not() -> None:
    application = viewer_of(whole_run(), max_bytes=5e3)
    assert asked(application, "/api/kernels?run=0&t0=0&t1=10000")[0] == 200
    assert asked(application, "/api/columns?run=0&t0=0&t1=10000")[0] == 200
    assert asked(application, "/api/meta?run=0")[0] == 200
    assert asked(application, "/api/overview?run=0&t0=0&t1=10000")[0] == 422  # which is always of the whole run


def test_two_runs_are_compared_where_there_is_memory_for_both() -> None:
    application = viewer_of(whole_run(), Trace(frame({}).lazy(), {}), max_bytes=1e3)
    assert [asked(application, f"/api/compare?{runs}")[0] for runs in ("a=0&b=1", "a=1&b=0")] == [422, 422]


@pytest.mark.skipif(not memory.MEMINFO.exists(), reason="the system does not say how much memory is available")
def test_half_of_the_available_memory_is_allowed() -> None:
    assert 0 < memory.default_bytes() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("told", [None, "MemTotal: 16 kB\n"])
def test_nothing_is_refused_where_the_system_does_not_say_what_is_available(tmp_path: Path, told: str | None) -> None:
    source = tmp_path / "meminfo"
    if told is not None:
        source.write_text(told)
    assert memory.default_bytes(source) == math.inf
    budget.require(runs.run_of(whole_run(), "run"), "kernels", math.inf)
