"""Power and memory: means over time, crest factors, throttling; copies and what runs beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tessera import analyze
from tests.unit.profiling.analyses.traces import kernel, trace


def sample(at_ms: float, **columns: Any) -> dict[str, Any]:
    return {"kind": "sample", "kernel_name": "sensors", "start_ns": round(1e6 * at_ms), **columns}


BURST = trace(
    sample(0, device="cuda:0", power_w=100.0, temp_c=40.0, throttle_reason="none"),
    sample(30, device="cuda:0", power_w=300.0, temp_c=55.0, throttle_reason="power"),
    sample(40, device="cuda:0", power_w=100.0, temp_c=50.0, throttle_reason="none"),
    kernel("matmul", 0, 30),
)


def test_power_is_weighted_with_the_time_that_samples_stand_for() -> None:
    (row,) = analyze.power(BURST)
    assert (row.device, row.samples, row.span_s) == ("cuda:0", 3, pytest.approx(0.04))
    assert row.mean_w == pytest.approx(150.0)
    assert row.energy_j == pytest.approx(6.0)
    assert row.crest_factor == pytest.approx(300 / math.sqrt((3 * 100**2 + 300**2) / 4))
    assert (row.peak_w, row.peak_c) == (300.0, 55.0)


def test_throttling_is_the_share_of_time_with_a_reason() -> None:
    (row,) = analyze.power(BURST)
    assert row.throttled_pct == pytest.approx(25.0)
    assert row.throttle_reasons == "power"


def test_samples_may_come_one_sensor_a_row() -> None:
    (row,) = analyze.power(
        trace(
            {"kind": "sample", "kernel_name": "power_w", "start_ns": 0, "value": 10.0, "device": "package-0"},
            {"kind": "sample", "kernel_name": "temp_c", "start_ns": 0, "value": 60.0, "device": "package-0"},
            {"kind": "sample", "kernel_name": "power_w", "start_ns": 10**9, "value": 30.0, "device": "package-0"},
        )
    )
    assert (row.mean_w, row.energy_j, row.peak_c) == (pytest.approx(10.0), pytest.approx(10.0), 60.0)


def test_without_sensors_the_table_says_why() -> None:
    result = analyze.power(trace(kernel("exp", 0, 1), capability={"power_w": "RAPL is for root only"}))
    assert len(result) == 0
    assert "power_w: not measured: RAPL is for root only" in str(result)
    (row,) = analyze.power(trace(sample(0, temp_c=50.0), sample(5, temp_c=52.0)))
    assert (row.mean_w, row.crest_factor, row.throttled_pct, row.peak_c) == (None, None, None, 52.0)


def test_the_picture_is_power_over_time(tmp_path: Path) -> None:
    assert "power, W" in analyze.power(BURST).plot(tmp_path / "power.svg").read_text()


def test_memory_has_kernels_and_copies_with_their_overlap() -> None:
    copy = {"kind": "memcpy", "memcpy_dir": "h2d", "bytes": 2e4, "start_ns": 20_000, "dur_ns": 20_000}
    matmul, copied = analyze.memory(trace(kernel("matmul", 0, 30, bytes=6e5), copy))
    assert (matmul.kind, matmul.name, matmul.overlap_pct) == ("kernel", "matmul", None)
    assert matmul.achieved_gbps == pytest.approx(20.0)
    assert (copied.kind, copied.name) == ("copy", "h2d")
    assert (copied.achieved_gbps, copied.overlap_pct) == (pytest.approx(1.0), pytest.approx(50.0))


def test_memory_without_counters_says_so_and_draws_what_there_is(tmp_path: Path) -> None:
    result = analyze.memory(trace(kernel("exp", 0, 10, bytes=1e5), capability={"l2_hit_rate": "no counters"}))
    assert "l2_hit_rate: not measured: no counters" in str(result)
    assert "exp" in result.plot(tmp_path / "memory.svg").read_text()
