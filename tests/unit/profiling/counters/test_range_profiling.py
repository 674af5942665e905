"""Range profiling over a stand-in of CUPTI: the calls in their order, columns, and that all is given back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tessera.errors import LibraryError
from tessera.profiling.counters import perfworks, range_profiling
from tessera.profiling.counters.nvidia_metrics import RANGES
from tessera.profiling.counters.range_profiling import counted

COUNTED = {
    "sm_occupancy": 70.0,
    "inst_issue_eff_pct": 40.0,
    "tc_util_pct": 80.0,
    "dram_read_gbps": 2e12,
    "dram_write_gbps": 1e12,
    "l2_hit_rate": 60.0,
    "smem_bank_conflicts": 12.0,
    "alu_util_pct": 5.0,
    "mem_stall_pct": 30.0,
    "warp_divergence_pct": 24.0,
}


class Cupti:
    """The functions of libcupti that range profiling calls, for `kernels` kernels, of which some are dropped."""

    def __init__(self, kernels: int, dropped: int = 0, failing: str = "") -> None:
        self.kernels, self.dropped, self.failing = kernels, dropped, failing
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == "cuptiGetResultString":
            return lambda result, text: 0
        return lambda given: self._call(name, given._obj)

    def _call(self, name: str, given: Any) -> int:
        self.called.append(name.removeprefix("cupti"))
        if name == self.failing:
            return 1
        fill: dict[str, dict[str, Any]] = {
            "cuptiProfilerGetCounterAvailability": {"counterAvailabilityImageSize": 8},
            "cuptiProfilerHostInitialize": {"pHostObject": 1},
            "cuptiProfilerHostGetConfigImageSize": {"configImageSize": 4},
            "cuptiRangeProfilerEnable": {"pRangeProfilerObject": 2},
            "cuptiRangeProfilerGetCounterDataSize": {"counterDataSize": 16},
            "cuptiRangeProfilerDecodeData": {"numOfRangeDropped": self.dropped},
            "cuptiRangeProfilerGetCounterDataInfo": {"numTotalRanges": self.kernels},
        }
        for field, value in fill.get(name, {}).items():
            setattr(given, field, value)
        # As a real one: a device is not asked before the profiler is ready, and a context is named.
        assert self.called[0] == "ProfilerInitialize"
        if name in ("cuptiProfilerGetCounterAvailability", "cuptiRangeProfilerEnable"):
            assert given.ctx == 7
        if name == "cuptiRangeProfilerSetConfig":
            assert (given.structSize, given.range, given.replayMode) == (90, 1, 2)
        if name == "cuptiProfilerHostEvaluateToGpuValues":
            for index, value in enumerate(COUNTED.values()):
                given.pMetricValues[index] = value
        return 0


def install(monkeypatch: pytest.MonkeyPatch, fake: Cupti) -> Cupti:
    monkeypatch.setattr(perfworks, "library", lambda: fake)
    monkeypatch.setattr(range_profiling, "current_context", lambda: 7)
    return fake


def test_each_kernel_has_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    cupti = install(monkeypatch, Cupti(2))
    assert COUNTED.keys() == RANGES.keys()
    runs: list[int] = []
    found = counted(lambda: runs.append(len(cupti.called)), "GH100", 2)
    assert len(found) == 2
    assert found[0] == pytest.approx(
        COUNTED
        | {
            "sm_occupancy": 0.7,
            "dram_read_gbps": 2000,
            "dram_write_gbps": 1000,
            "l2_hit_rate": 0.6,
            "warp_divergence_pct": 25,
        }
    )
    assert cupti.called[runs[0] - 1] == "RangeProfilerStart"
    assert cupti.called[runs[0]] == "RangeProfilerStop"
    assert cupti.called[-2:] == ["RangeProfilerDisable", "ProfilerHostDeinitialize"]


def test_another_number_of_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Cupti(3))
    with pytest.raises(LibraryError, match="3 kernels ran where 2 were to be counted"):
        counted(lambda: None, "GH100", 2)


def test_kernels_that_were_dropped_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cupti = install(monkeypatch, Cupti(2, dropped=1))
    with pytest.raises(LibraryError, match="1 kernels were not counted"):
        counted(lambda: None, "GH100", 2)
    assert cupti.called[-1] == "ProfilerHostDeinitialize"


@pytest.mark.parametrize("failing", ["cuptiRangeProfilerEnable", "cuptiRangeProfilerSetConfig"])
def test_a_start_that_fails_gives_everything_back(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cupti = install(monkeypatch, Cupti(1, failing=failing))
    with pytest.raises(LibraryError):
        counted(lambda: None, "GH100", 1)
    assert ("RangeProfilerDisable" in cupti.called) == (failing != "cuptiRangeProfilerEnable")
    assert cupti.called[-1] == "ProfilerHostDeinitialize"


def test_an_exception_of_the_program_ends_the_profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    cupti = install(monkeypatch, Cupti(1))
    with pytest.raises(ZeroDivisionError):
        counted(lambda: 1 / 0, "GH100", 1)
    assert cupti.called[-3:] == ["RangeProfilerStop", "RangeProfilerDisable", "ProfilerHostDeinitialize"]


def test_without_a_driver_there_is_no_context_to_count_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(LibraryError, match=r"no NVIDIA driver: libcuda\.so\.1"):
        range_profiling.current_context()


def test_structures_have_the_sizes_of_the_header() -> None:
    sizes = {"SetConfig": 96, "Stop": 48, "GetCounterDataSize": 64, "DecodeData": 32, "GetCounterDataInfo": 40}
    assert {name: ctypes.sizeof(getattr(range_profiling, name)) for name in sizes} == sizes
