"""Metric names and pass counts of NVIDIA GPUs, asked of the library itself; no GPU is needed for that."""

from __future__ import annotations

import ctypes

import pytest

from tessera.errors import LibraryError
from tessera.profiling.counters import perfworks
from tessera.profiling.counters.nvidia_metrics import CHIPS, DURATION, MISSING, RANGES, SAMPLED, Metric
from tessera.profiling.counters.perfworks import MetricHost, ProfilerType, passes_of
from tessera.profiling.trace.table import COLUMNS
from tessera.system.distribution import installing


def _installed() -> bool:
    try:
        perfworks.library()
    except LibraryError:
        return False
    return True


needs_cupti = pytest.mark.skipif(not _installed(), reason="nvidia-cuda-cupti is not installed (extra nvidia)")


def passes(chip: str, kind: ProfilerType, metrics: list[Metric]) -> int:
    with MetricHost(chip, kind) as host:
        return passes_of(host.configure([metric.name for metric in metrics]))


@needs_cupti
def test_the_library_knows_the_chips() -> None:
    assert set(CHIPS.values()) <= set(perfworks.chips())


@needs_cupti
@pytest.mark.parametrize("chip", CHIPS.values())
def test_sampling_takes_one_pass(chip: str) -> None:
    assert passes(chip, ProfilerType.PM_SAMPLING, list(SAMPLED.values())) == 1


@needs_cupti
@pytest.mark.parametrize("chip", CHIPS.values())
def test_ranges_take_three_passes_at_most_and_one_for_the_first_five(chip: str) -> None:
    assert 1 < passes(chip, ProfilerType.RANGES, list(RANGES.values())) <= 3
    assert passes(chip, ProfilerType.RANGES, [RANGES[column] for column in SAMPLED]) == 1


@needs_cupti
def test_a_metric_that_a_chip_lacks_is_refused() -> None:
    with MetricHost("GH100", ProfilerType.RANGES) as host, pytest.raises(LibraryError, match="ConfigAddMetrics"):
        host.configure(["sm__no_such_thing.avg"])


@needs_cupti
def test_a_chip_that_is_not_known_is_refused() -> None:
    with pytest.raises(LibraryError, match="HostInitialize"):
        MetricHost("ZZ999", ProfilerType.RANGES)


def test_every_column_is_one_of_the_portable_ones() -> None:
    assert {*SAMPLED, *RANGES, *MISSING} <= COLUMNS.keys()
    counters = {"sm_occupancy", "warp_divergence_pct", "inst_issue_eff_pct", "dram_read_gbps", "dram_write_gbps"}
    counters |= {"l2_hit_rate", "smem_bank_conflicts", "tc_util_pct", "alu_util_pct", "cp_async_inflight"}
    assert counters <= {*RANGES, *MISSING}


def test_values_become_those_of_columns() -> None:
    assert SAMPLED["sm_occupancy"].column_value(71) == pytest.approx(0.71)
    assert RANGES["warp_divergence_pct"].column_value(32) == pytest.approx(0)
    assert RANGES["warp_divergence_pct"].column_value(8) == pytest.approx(75)
    assert RANGES["l2_hit_rate"].column_value(50) == pytest.approx(0.5)


def test_structures_have_the_sizes_of_the_header() -> None:
    sizes = {"Initialize": 48, "AddMetrics": 40, "GetConfigImage": 40, "GetNumOfPasses": 40, "EvaluateToGpuValues": 72}
    assert {name: ctypes.sizeof(getattr(perfworks, name)) for name in sizes} == sizes


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfworks, "LIBRARY", "libno_such_thing.so.1")
    perfworks.library.cache_clear()
    try:
        with pytest.raises(LibraryError, match="CUPTI is not there") as failure:
            perfworks.library()
    finally:
        perfworks.library.cache_clear()
    assert installing("nvidia") in str(failure.value)


@needs_cupti
@pytest.mark.parametrize("chip", CHIPS.values())
def test_the_duration_takes_no_further_pass(chip: str) -> None:
    metrics = list(RANGES.values())
    assert passes(chip, ProfilerType.RANGES, [*metrics, DURATION]) == passes(chip, ProfilerType.RANGES, metrics)


@needs_cupti
@pytest.mark.parametrize("chip", ["GA102", "GH100", "GB100"])
def test_passes_grow_with_metrics_so_that_these_tests_can_fail(chip: str) -> None:
    stalls = ("barrier", "wait", "math_pipe_throttle", "short_scoreboard")
    more = [Metric(f"smsp__warp_issue_stalled_{each}_per_warp_active.pct", "%") for each in stalls]
    more += [Metric("l1tex__t_sector_hit_rate.pct", "%"), Metric("smsp__inst_executed_pipe_xu.sum", "")]
    assert passes(chip, ProfilerType.RANGES, [*RANGES.values(), *more]) > 3
    assert passes(chip, ProfilerType.RANGES, [*(RANGES[column] for column in SAMPLED), *more]) > 1
