"""The memory breakdown: bytes by memory level as the compiler estimates them, beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tessera import analyze, op, profile
from tessera.errors import ProfileError
from tessera.handle import Tensor
from tests.unit.profiling.analyses.traces import US, kernel, trace

ESTIMATE = '{"L1":3000000,"L2":2000000,"L3":1000000,"DRAM":500000,"scratch":4000000}'


def test_estimates_are_of_all_calls_and_scratch_is_the_most_of_one() -> None:
    smaller = json.dumps({**json.loads(ESTIMATE), "scratch": 1_000_000})
    (row,) = analyze.memory(
        trace(
            kernel("exp", 0, 5, traffic=ESTIMATE),
            kernel("exp", 9, 5, traffic=ESTIMATE),
            kernel("exp", 19, 5, traffic=smaller),
        )
    )
    assert (row.l1_mb, row.l2_mb, row.l3_mb, row.dram_mb, row.scratch_mb) == (9, 6, 3, 1.5, 4)


def test_a_call_without_an_estimate_leaves_its_kernel_without_one() -> None:
    known, unknown = analyze.memory(
        trace(kernel("exp", 0, 50, traffic=ESTIMATE), kernel("topk", 60, 5, traffic=ESTIMATE), kernel("topk", 70, 5))
    )
    assert known.dram_mb == 0.5
    assert (unknown.name, unknown.dram_mb) == ("topk", None)


def test_without_estimates_the_columns_are_missing_and_say_so() -> None:
    result = analyze.memory(trace(kernel("exp", 0, 5)))
    assert "dram_mb" in result.missing
    assert "DRAM(MB)" not in str(result)
    assert "counters tell L3 and DRAM" in result.missing["dram_mb"]


@pytest.mark.parametrize("text", ["[1]", "{", '{"L1": "much"}', "7"])
def test_what_is_no_estimate_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match="traffic"):
        analyze.memory(trace(kernel("exp", 0, 5, traffic=text)))


def test_kernels_of_a_session_have_estimates_that_files_keep(tmp_path: Path) -> None:
    x = torch.randn(256, 512)
    with profile.session() as session:
        (op.tensor(x) + 1.0).eval()
    (record,) = (record for record in session.records() if record.kind == "kernel")
    estimate = dict(record.traffic)
    assert list(estimate) == ["L1", "L2", "L3", "DRAM", "scratch"]
    # Every byte comes from and goes to some level, where it lies.
    assert sum(estimate[level] for level in ("L2", "L3", "DRAM")) + estimate["L1"] >= (record.bytes or 0)
    (row,) = analyze.memory(session)
    assert row.dram_mb == pytest.approx(estimate["DRAM"] / 1e6)
    assert row.traffic_by == "estimate"
    assert "estimate: by the cost model" in str(analyze.memory(session))


def moved_by(result: Tensor) -> dict[str, float]:
    with profile.session() as session:
        result.eval()
    (record,) = (record for record in session.records() if record.kind == "kernel")
    return dict(record.traffic)


def test_levels_that_the_cost_model_does_not_count_are_no_zeros() -> None:
    heads, image = torch.randn(1, 2, 64, 32), torch.randn(1, 8, 16, 16)
    assert list(moved_by(op.flash_attention(heads, heads, heads))) == ["L3", "DRAM", "scratch"]
    assert list(moved_by(op.conv2d(image, op.constant(torch.randn(8, 8, 3, 3))))) == ["L3", "DRAM", "scratch"]
    assert list(moved_by(op.max_pool2d(image, 2))) == ["L2", "L3", "DRAM", "scratch"]
    with profile.session() as session:
        op.flash_attention(heads, heads, heads).eval()
    result = analyze.memory(session)
    (row,) = result
    assert (row.l1_mb, row.l2_mb) == (None, None)
    assert "does not count L1 and L2 of attention" in result.missing["l1_mb"]


def samples(rates: dict[str, float]) -> list[dict[str, object]]:
    """Readings of the process' counters every 100 us, as perf gives them: events a second."""
    return [
        {"kind": "sample", "kernel_name": name, "start_ns": US * at, "dur_ns": 0, "value": rate, "backend": "perf"}
        for at in range(0, 1001, 100)
        for name, rate in rates.items()
    ]


MISSES = {"cache_references": 5e9, "llc_read_misses": 1e9, "llc_write_misses": 0.5e9}


def test_what_counters_told_takes_the_place_of_the_estimate() -> None:
    long, short = analyze.memory(
        trace(kernel("copy", 0, 500, traffic=ESTIMATE), kernel("exp", 600, 50, traffic=ESTIMATE), *samples(MISSES))
    )
    # 64 bytes a line, for 500 us.
    assert (long.name, long.l3_mb, long.dram_mb) == ("copy", pytest.approx(160.0), pytest.approx(48.0))
    assert (long.l2_mb, long.traffic_by) == (2.0, "counters: L3, DRAM")
    assert (short.l3_mb, short.dram_mb, short.traffic_by) == (1.0, 0.5, "estimate")


def test_an_event_that_is_not_counted_leaves_its_level_to_the_estimate() -> None:
    halves = {name: rate for name, rate in MISSES.items() if name != "llc_write_misses"}
    (row,) = analyze.memory(trace(kernel("copy", 0, 500, traffic=ESTIMATE), *samples(halves)))
    assert (row.dram_mb, row.traffic_by) == (0.5, "counters: L3")


def test_memory_controllers_come_before_misses_and_stand_for_calls_without_a_reading() -> None:
    told = {"dram_read_gbps": 100.0, "dram_write_gbps": 20.0}
    result = analyze.memory(
        trace(kernel("copy", 0, 500, **told), kernel("copy", 600, 300), kernel("exp", 950, 40), *samples(MISSES))
    )
    copy, exp = result
    assert (copy.dram_mb, copy.traffic_by) == (pytest.approx(120e9 * 800e-6 / 1e6), "counters: L3, DRAM")
    assert (exp.dram_mb, exp.traffic_by) == (None, None)
    assert "not known" in str(result)


def test_counters_of_a_process_say_nothing_of_other_ranks_and_of_gpus() -> None:
    calls = kernel("copy", 0, 500, rank=1, traffic=ESTIMATE), kernel("exp", 0, 400, device="cuda:0", traffic=ESTIMATE)
    for row in analyze.memory(trace(*calls, *samples(MISSES))):
        assert (row.dram_mb, row.traffic_by) == (0.5, "estimate")


def test_readings_of_less_than_half_of_the_time_are_not_scaled() -> None:
    told = {"dram_read_gbps": 100.0, "dram_write_gbps": 20.0, "traffic": ESTIMATE}
    (row,) = analyze.memory(trace(kernel("copy", 0, 50, **told), kernel("copy", 60, 90, traffic=ESTIMATE)))
    assert (row.dram_mb, row.traffic_by) == (1.0, "estimate")


def test_scratch_memory_is_that_of_all_workers() -> None:
    with profile.session() as session:
        op.matmul(torch.randn(200, 200), torch.randn(200, 200), tile_shape=(48, 64, 32)).eval()
    (record,) = (record for record in session.records() if record.operator == "matmul")
    assert dict(record.traffic)["scratch"] % record.workers == 0
