"""The suite of profiling's costs: every figure comes from a measurement, and lost kernels are found."""

from __future__ import annotations

from bench.probes import profiling
from bench.suites import profile
from tessera.profiling.ring import recorder


def test_pairs_differ_by_what_the_profiler_adds() -> None:
    x: list[int] = []
    found = profiling.added_ns(lambda: x.append(1), profiling.torch_profiler, 2)
    assert len(found) == 2
    assert len(x) == profiling.CALLS * 5


def test_the_end_of_a_session_is_measured() -> None:
    found = profiling.at_the_end(300)
    assert found["recorded"] == found["launched"] == 300
    assert min(found[name] for name in ("json", "parquet", "report", "json bytes", "parquet bytes")) > 0


def test_conservation_counts_every_kernel() -> None:
    usual = recorder.ring()
    found = profiling.conservation(4)
    assert found["launched"] == found["expected"] == 2400 == found["recorded"] + found["dropped"]
    assert found["wrong"] == 0
    assert recorder.ring() is usual


def test_figures_hold_the_limits() -> None:
    found = {
        "overheads_ns": {"operator": [100.0, 300.0, 140.0], "torch operator, torch.profiler": [600.0]},
        "without_session_ns": [30.0],
        "at_the_end": {
            "launched": 10,
            "recorded": 9,
            "json": 900.0,
            "parquet": 300.0,
            "report": 10.0,
            "json bytes": 100.0,
            "parquet bytes": 9.0,
            "memory": 64.0,
        },
        "sampling": {"ticks": 10, "missed": 0, "share_pct": 0.4},
        "conservation": {"launched": 10, "recorded": 9, "dropped": 0, "expected": 10, "wrong": 1},
    }
    met = {figure.name: figure.met for figure in profile.figures(found, 1)}
    assert met["added, operator"] is True
    assert met["added, torch operator, torch.profiler"] is None
    assert met["no session, a kernel"] is False
    assert met["stop to disk as JSON, an event"] is True
    assert met["stop to disk as Parquet, an event"] is False
    assert met["sessions that lost a kernel unseen"] is False
