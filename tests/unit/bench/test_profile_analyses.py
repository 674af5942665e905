"""The suite of analyses: the trace that it makes, and what it says of one."""

from __future__ import annotations

from pathlib import Path

import polars

from bench.probes import analyses
from bench.suites import profile_analyses
from tessera.profiling.trace import reading


def test_the_trace_has_the_events_asked_for_by_start(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    analyses.make(2500, path)
    events = reading.read(path).events.collect()
    assert len(events) == 2500
    assert events["start_ns"].is_sorted()
    counts = dict(events["kind"].cast(polars.String).value_counts().iter_rows())
    assert counts == {"kernel": 2425, "collective": 25, "memcpy": 25, "sample": 25}


def test_every_analysis_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    analyses.make(500, path)
    answer = analyses.run(path)
    assert {"roofline", "stalls", "divergence", "collectives", "memory", "power", "advise", "compare"} <= set(answer)
    assert answer["seconds"] > sum(answer[name] for name in ("roofline", "advise", "compare"))
    assert answer["peak_mb"] >= answer["import_mb"] > 0


def test_figures_hold_the_limits_and_what_the_imports_take(tmp_path: Path) -> None:
    size = profile_analyses.Size(500, "json", 1.5, 400.0)
    figures = {each.name: each for each in profile_analyses.figures(size, 1, 1, tmp_path)}
    assert figures["500 events, JSON: load and all analyses"].limit == 1.5
    memory = figures["500 events, JSON: peak memory"]
    assert memory.met is not None
    assert "MB are imports" in memory.note
    assert len(figures) == 11
