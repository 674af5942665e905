"""PM sampling over a stand-in of CUPTI: what is called in which order, the means, and that all is given back."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest

from tessera.errors import LibraryError
from tessera.profiling.counters import gpus, perfworks
from tessera.profiling.counters.backends import pm_sampling
from tessera.profiling.counters.backends.pm_sampling import PmSampler, PmSamplingBackend
from tessera.profiling.counters.interfaces import Subject
from tessera.profiling.counters.nvidia_metrics import SAMPLED


class Cupti:
    """The functions of libcupti that sampling calls: each checks its structure's size and notes its name."""

    def __init__(self, samples: list[list[float]], failing: str = "", result: int = 35) -> None:
        self.called: list[str] = []
        self.samples = samples
        self.failing, self.result = failing, result
        self.config: Any = None

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == "cuptiGetResultString":
            return self._result_string
        return lambda given: self._call(name, given._obj)

    def _result_string(self, result: Any, text: Any) -> int:
        text._obj.value = f"CUPTI_ERROR_{result.value}".encode()
        return 0

    def _call(self, name: str, given: Any) -> int:
        assert given.structSize == (45 if name == "cuptiPmSamplingDecodeData" else ctypes.sizeof(given))
        self.called.append(name.removeprefix("cupti"))
        if name == self.failing:
            return self.result
        assert self.called[0] == "ProfilerInitialize"  # before it, a real one refuses its parameters
        fill: dict[str, dict[str, Any]] = {
            "cuptiDeviceGetChipName": {"pChipName": b"GH100"},
            "cuptiPmSamplingGetCounterAvailability": {"counterAvailabilityImageSize": 8},
            "cuptiProfilerHostInitialize": {"pHostObject": 1},
            "cuptiProfilerHostGetConfigImageSize": {"configImageSize": 4},
            "cuptiPmSamplingEnable": {"pPmSamplingObject": 2},
            "cuptiPmSamplingGetCounterDataSize": {"counterDataSize": 16},
            "cuptiPmSamplingGetCounterDataInfo": {"numCompletedSamples": len(self.samples)},
        }
        for field, value in fill.get(name, {}).items():
            setattr(given, field, value)
        if name == "cuptiPmSamplingSetConfig":
            self.config = given
        if name == "cuptiProfilerHostEvaluateToGpuValues":
            for index, value in enumerate(self.samples[given.rangeIndex]):
                given.pMetricValues[index] = value
        return 0


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cupti], Cupti]:
    def set_library(fake: Cupti) -> Cupti:
        monkeypatch.setattr(perfworks, "library", lambda: fake)
        monkeypatch.setattr(pm_sampling, "device_count", lambda subject: 1)
        monkeypatch.setattr(pm_sampling, "variable_of", lambda subject, name: None)
        return fake

    return set_library


def test_readings_are_means_in_the_columns_units(install: Callable[[Cupti], Cupti]) -> None:
    cupti = install(Cupti([[60, 40, 80, 1e12, 5e11], [80, 60, 90, 3e12, 5e11]]))
    (sampler,) = PmSamplingBackend().open(Subject(1))
    found = dict(zip([field.name for field in sampler.fields], sampler.read(), strict=True))
    assert found == pytest.approx(
        {
            "sm_occupancy": 0.7,
            "inst_issue_eff_pct": 50,
            "tc_util_pct": 85,
            "dram_read_gbps": 2000,
            "dram_write_gbps": 500,
        }
    )
    assert {field.device for field in sampler.fields} == {"cuda:0"}
    assert cupti.config.samplingInterval == 1_000_000
    assert cupti.config.triggerMode == 1
    sampler.close()
    assert cupti.called[-3:] == ["PmSamplingStop", "PmSamplingDisable", "ProfilerHostDeinitialize"]


@pytest.mark.parametrize(
    ("theirs", "ours", "remedy"),
    [("3", None, "CUDA_VISIBLE_DEVICES=3 tessera-prof"), (None, "1", "unset CUDA_VISIBLE_DEVICES")],
)
def test_a_program_that_numbers_gpus_differently_gets_no_counters_of_another_device(
    theirs: str | None,
    ours: str | None,
    remedy: str,
    install: Callable[[Cupti], Cupti],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(Cupti([[60, 40, 80, 1e12, 5e11]]))
    monkeypatch.setattr(gpus, "present", lambda vendor: True)
    monkeypatch.setattr(pm_sampling, "variable_of", lambda subject, name: ours if subject.own else theirs)
    backend, other = PmSamplingBackend(), Subject(1)
    for capability in backend.capabilities(other).values():
        assert "the program numbers GPUs by CUDA_VISIBLE_DEVICES=" in str(capability.reason)
        assert remedy in capability.remedy
    assert backend.open(other) == []
    (sampler,) = backend.open(Subject())
    sampler.close()


def test_without_samples_there_are_no_values(install: Callable[[Cupti], Cupti]) -> None:
    install(Cupti([]))
    sampler = PmSampler(0)
    assert all(math.isnan(value) for value in sampler.read())
    sampler.close()


def test_missing_rights_are_a_capability_with_the_remedy(
    install: Callable[[Cupti], Cupti], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "present", lambda vendor: True)
    install(Cupti([], failing="cuptiPmSamplingGetCounterAvailability"))
    backend = PmSamplingBackend()
    for capability in backend.capabilities(Subject(1)).values():
        assert "CUPTI_ERROR_35" in str(capability.reason)
        assert "NVreg_RestrictProfilingToAdminUsers=0" in capability.remedy
    assert backend.open(Subject(1)) == []


@pytest.mark.parametrize(
    "failing",
    ["cuptiPmSamplingEnable", "cuptiPmSamplingSetConfig", "cuptiPmSamplingStart", "cuptiProfilerHostConfigAddMetrics"],
)
def test_a_start_that_fails_gives_everything_back(failing: str, install: Callable[[Cupti], Cupti]) -> None:
    cupti = install(Cupti([], failing=failing, result=1))
    with pytest.raises(LibraryError, match="CUPTI_ERROR_1"):
        PmSampler(0)
    enabled = "PmSamplingSetConfig" in cupti.called
    assert ("PmSamplingDisable" in cupti.called) == enabled
    assert "PmSamplingStop" not in cupti.called
    assert cupti.called[-1] == "ProfilerHostDeinitialize"


def test_a_device_that_is_lost_ends_the_sampler(install: Callable[[Cupti], Cupti]) -> None:
    cupti = install(Cupti([[1, 2, 3, 4, 5]]))
    sampler = PmSampler(0)
    cupti.failing = "cuptiPmSamplingDecodeData"
    with pytest.raises(OSError, match="DecodeData"):
        sampler.read()


def test_a_process_that_does_not_use_cuda_is_left_alone() -> None:
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pytest.skip("another test has used the GPU")
    with pytest.raises(LibraryError, match="CUDA is not in use"):
        pm_sampling.device_count(Subject())


def test_all_columns_have_samples() -> None:
    assert len(SAMPLED) == 5
    assert ctypes.sizeof(pm_sampling.SetConfig) == 64
    assert ctypes.sizeof(pm_sampling.GetCounterDataSize) == 56
    assert ctypes.sizeof(pm_sampling.GetCounterDataInfo) == 56
    assert pm_sampling.DecodeData.overflow.offset == 44
