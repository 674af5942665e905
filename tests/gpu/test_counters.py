"""Counters and times of a real GPU: CUPTI activity, PM sampling, NVML."""

from __future__ import annotations

import time

import pytest
import torch

from tessera import op, profile
from tessera.errors import LibraryError
from tessera.profiling.counters import Subject
from tessera.profiling.counters.backends.gpm import GpmBackend
from tessera.profiling.counters.backends.nvml import NvmlBackend
from tessera.profiling.counters.backends.pm_sampling import PmSampler, availability, chip_of
from tessera.profiling.counters.cupti_activity import CuptiActivity
from tessera.profiling.counters.range_profiling import counted as counted_ranges
from tessera.profiling.sampling import sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def _refusal() -> str:
    try:
        CuptiActivity()
        availability(0)
    except LibraryError as error:
        return error.message
    return ""


counted = pytest.mark.skipif(
    not torch.cuda.is_available() or bool(_refusal()), reason="CUPTI is not installed, or counters are not allowed"
)


def _busy(seconds: float) -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()


@counted
def test_kernels_are_timed_as_events_time_them() -> None:
    a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        op.matmul(a, b).eval()
    with profile.session(activities=["gpu"]) as session:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(20):
            op.matmul(a, b).eval()
        end.record()
        end.synchronize()
    kernels = [record for record in session.records() if record.kind == "kernel"]
    assert session.launched == session.recorded + session.dropped
    assert session.recorded == session.launched > 0
    assert 0 < sum(record.duration_us for record in kernels) <= begin.elapsed_time(end) * 1e3 * 1.05
    assert {record.operator for record in kernels} == {"matmul"}


@counted
def test_pm_sampling_sees_tensor_cores_and_memory() -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    sampler = PmSampler(0)
    try:
        _busy(0.2)
        busy = dict(zip([field.name for field in sampler.fields], sampler.read(), strict=True))
    finally:
        sampler.close()
    assert 0 < busy["sm_occupancy"] <= 1
    assert 0 < busy["tc_util_pct"] <= 100
    assert busy["dram_read_gbps"] > 0


@pytest.mark.skipif(
    not NvmlBackend().capabilities(Subject())["power_w"].available, reason="NVML or nvidia-ml-py is missing"
)
def test_nvml_gives_what_it_says() -> None:
    with sampling.start(20, activities=["power"]) as sampled:
        _busy(0.5)
    rows = sampled.take()
    named = set(rows.filter(rows["backend"] == "nvml")["kernel_name"])
    assert {"power_w", "temp_c", "throttle_reason"} <= named
    power = rows.filter((rows["kernel_name"] == "power_w") & (rows["backend"] == "nvml"))["value"]
    assert power.min() > 10  # type: ignore[operator]


@pytest.mark.skipif(
    not GpmBackend().capabilities(Subject())["tc_util_pct"].available, reason="this GPU has no GPM counters"
)
def test_gpm_sees_tensor_cores() -> None:
    (sampler, *others) = GpmBackend().open(Subject())
    for each in others:
        each.close()
    _busy(0.3)
    found = dict(zip([field.name for field in sampler.fields], sampler.read(), strict=True))
    sampler.close()
    assert 0 < found["tc_util_pct"] <= 100


@counted
def test_ranges_count_each_kernel() -> None:
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    (a @ a).sum().item()

    def run() -> None:
        op.matmul(a, a).eval()
        torch.cuda.synchronize()

    run()
    with profile.session(activities=["gpu"]) as session:
        run()
    found = counted_ranges(run, chip_of(0), session.launched)
    assert len(found) == session.launched
    assert max(columns["tc_util_pct"] for columns in found) > 1
    assert all(0 <= columns["l2_hit_rate"] <= 1 for columns in found)
