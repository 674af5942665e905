"""Adapters to the libraries of NVIDIA, AMD and Intel: fields, units, refusals, and that all is given back."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

from tessera.profiling.counters import gpus
from tessera.profiling.counters.backends.amd import AmdBackend
from tessera.profiling.counters.backends.gpm import GpmBackend
from tessera.profiling.counters.backends.intel import IntelBackend, Sysman
from tessera.profiling.counters.backends.nvml import NvmlBackend
from tessera.profiling.counters.gpu_sensors import LibraryRefusal, load, variable_of, visible
from tessera.profiling.counters.interfaces import CounterBackend, Sampler, Subject
from tessera.profiling.sampling.samples import bit_names
from tests.unit.profiling.counters.vendors import AmdSmi, Nvml, NVMLError, Zes

SUBJECT = Subject(77)
PRESENT = gpus.present


@pytest.fixture(autouse=True)
def all_devices_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpus, "present", lambda vendor: True)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return installed(monkeypatch, Nvml())


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> AmdSmi:
    return installed(monkeypatch, AmdSmi())


@pytest.fixture
def zes(monkeypatch: pytest.MonkeyPatch) -> Zes:
    return installed(monkeypatch, Zes())


Module = TypeVar("Module", bound=ModuleType)


def installed(monkeypatch: pytest.MonkeyPatch, module: Module) -> Module:
    monkeypatch.setitem(sys.modules, f"fake_{module.__name__}", module)
    return module


def readings(sampler: Sampler) -> dict[tuple[str, str], float]:
    """Values in their units by device and field; of cumulative fields what has grown so far."""
    return {
        (field.device, field.name): value * field.scale
        for field, value in zip(sampler.fields, sampler.read(), strict=True)
    }


def test_an_nvidia_gpu(nvml: Nvml) -> None:
    backend = NvmlBackend("fake_pynvml")
    capabilities = backend.capabilities(SUBJECT)
    assert nvml.started == 0
    (sampler,) = backend.open(SUBJECT)
    found = readings(sampler)

    assert found["cuda:0", "power_w"] == pytest.approx(350)
    assert found["cuda:0", "temp_c"] == 61
    assert found["cuda:0", "sm_clock_mhz"] == 1980
    assert found["cuda:0", "gpu_util_pct"] == 97
    assert found["cuda:0", "process_device_memory_bytes"] == 5_000_000
    assert found["cuda:0", "nvlink_tx"] % 1024 == 0
    assert [name for device, name in found if device == "cuda:1"] == ["power_w"]
    throttle = next(field for field in sampler.fields if field.name == "throttle_reason")
    assert bit_names(int(found["cuda:0", "throttle_reason"]), throttle.bits) == "power+thermal"
    assert capabilities["pcie_tx"].available
    assert not capabilities["pcie_rx"].available
    assert "no voltages" in str(capabilities["rail_voltage_v"].reason)
    assert nvml.started == 1
    sampler.close()
    assert nvml.started == 0


def test_a_call_that_fails_later_has_no_value(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    (sampler,) = NvmlBackend("fake_pynvml").open(SUBJECT)

    def lost(handle: int) -> int:
        raise NVMLError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", lost)
    found = readings(sampler)
    assert math.isnan(found["cuda:0", "power_w"])
    assert found["cuda:0", "temp_c"] == 61
    sampler.close()


def test_a_process_without_device_memory_has_no_value(nvml: Nvml) -> None:
    nvml.processes = []
    (sampler,) = NvmlBackend("fake_pynvml").open(SUBJECT)
    assert math.isnan(readings(sampler)["cuda:0", "process_device_memory_bytes"])
    sampler.close()


def test_devices_are_numbered_as_the_program_sees_them(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-aa")
    (sampler,) = NvmlBackend("fake_pynvml").open(Subject())
    found = readings(sampler)
    sampler.close()
    assert ("cuda:1", "temp_c") in found
    assert ("cuda:0", "temp_c") not in found


def test_gpm_gives_ratios_and_percentages(nvml: Nvml) -> None:
    backend = GpmBackend("fake_pynvml")
    assert backend.capabilities(SUBJECT)["tc_util_pct"].available
    (sampler,) = backend.open(SUBJECT)
    found = readings(sampler)
    assert sampler.min_interval_ms >= 100
    assert found["cuda:0", "sm_occupancy"] == pytest.approx(0.13)
    assert found["cuda:0", "tc_util_pct"] == 15
    assert found["cuda:0", "gpm_pcie_tx"] == 30 * 2**20
    assert math.isnan(found["cuda:0", "gpm_nvlink_rx"])
    sampler.close()
    assert (nvml.samples, nvml.started) == (0, 0)


def test_a_gpu_without_gpm_says_so(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    backend = GpmBackend("fake_pynvml")
    assert "no GPM" in str(backend.capabilities(Subject())["tc_util_pct"].reason)
    assert backend.open(Subject()) == []
    assert nvml.started == 0


def test_an_amd_gpu(amd: AmdSmi) -> None:
    backend = AmdBackend("fake_amdsmi")
    capabilities = backend.capabilities(SUBJECT)
    (sampler,) = backend.open(SUBJECT)
    found = readings(sampler)
    assert found["cuda:0", "power_w"] == 612
    assert (found["cuda:0", "temp_c"], found["cuda:0", "memory_temp_c"]) == (71, 58)
    assert (found["cuda:0", "gpu_clock_mhz"], found["cuda:0", "memory_clock_mhz"]) == (2100, 1300)
    assert found["cuda:0", "device_memory_bytes"] == 2 * 2**30
    assert (found["cuda:0", "gpu_util_pct"], found["cuda:0", "memory_util_pct"]) == (88, 43)
    throttle = next(field for field in sampler.fields if field.name == "throttle_reason")
    assert bit_names(int(found["cuda:0", "throttle_reason"]), throttle.bits) == "power+thermal (HBM)"
    assert "N/A" in str(capabilities["rail_voltage_v"].reason)
    sampler.close()
    assert amd.started == 0


def test_an_intel_gpu(zes: Zes) -> None:
    backend = IntelBackend("fake_pyzes")
    capabilities = backend.capabilities(SUBJECT)
    (sampler,) = backend.open(SUBJECT)
    found = readings(sampler)
    assert found["xpu:0", "power_w"] == pytest.approx(5)  # joules so far
    assert (found["xpu:0", "temp_c"], found["xpu:0", "memory_temp_c"]) == (51, 52)
    assert found["xpu:0", "gpu_clock_mhz"] == 1600
    assert found["xpu:0", "dram_read_gbps"] == pytest.approx(2000e-9)
    assert found["xpu:0", "dram_write_gbps"] == pytest.approx(1000e-9)
    assert found["xpu:0", "device_memory_bytes"] == 120
    throttle = next(field for field in sampler.fields if field.name == "throttle_reason")
    assert bit_names(int(found["xpu:0", "throttle_reason"]), throttle.bits) == "power (average)+power"
    assert "no voltage" in str(capabilities["rail_voltage_v"].reason)
    sampler.close()


@pytest.mark.parametrize(
    ("make", "backends"),
    [
        (Nvml, [NvmlBackend("fake_pynvml"), GpmBackend("fake_pynvml")]),
        (AmdSmi, [AmdBackend("fake_amdsmi")]),
        (Zes, [IntelBackend("fake_pyzes")]),
    ],
)
def test_a_driver_that_is_not_there_is_a_capability_with_a_remedy(
    make: Callable[[], Nvml | AmdSmi | Zes], backends: list[CounterBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, make()).driver = False
    for backend in backends:
        capabilities = backend.capabilities(SUBJECT)
        assert all(each.reason and each.remedy for each in capabilities.values())
        assert backend.open(SUBJECT) == []


@pytest.mark.parametrize("backend", [NvmlBackend("no_such"), AmdBackend("no_such"), IntelBackend("no_such")])
def test_a_library_that_is_not_installed_names_what_to_install(backend: CounterBackend) -> None:
    found = backend.capabilities(SUBJECT)
    assert all(each.reason == "no_such is not installed" for each in found.values())
    assert all("pip install" in each.remedy for each in found.values())
    assert backend.open(SUBJECT) == []


@pytest.mark.parametrize(
    "backend", [NvmlBackend("no_such"), GpmBackend("no_such"), AmdBackend("no_such"), IntelBackend("no_such")]
)
def test_without_a_gpu_there_is_nothing_to_install(backend: CounterBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "present", lambda vendor: False)
    for found in backend.capabilities(SUBJECT).values():
        assert (found.available, found.absent, found.remedy) == (False, True, "")
        assert "GPU is here" in str(found)


def test_gpus_are_known_by_the_bus_or_where_that_is_hidden_by_their_device_files(tmp_path: Path) -> None:
    sys, dev = tmp_path / "sys", tmp_path / "dev"
    dev.mkdir()
    assert not PRESENT("NVIDIA", sys, dev)
    (dev / "nvidia0").touch()
    assert PRESENT("NVIDIA", sys, dev)
    for slot, kind, vendor in (("0", "0x030000", "0x1002"), ("1", "0x060000", "0x8086")):
        device = sys / "bus/pci/devices" / slot
        device.mkdir(parents=True)
        (device / "class").write_text(kind)
        (device / "vendor").write_text(vendor)
    assert PRESENT("AMD", sys, dev)
    assert not PRESENT("Intel", sys, dev)  # a bridge of Intel's


def test_a_binding_that_fails_on_import_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_binding.py").write_text("print('looked in vain')\nraise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LibraryRefusal, match=r"libamd_smi\.so"):
        load("broken_binding", "amdsmi")


def test_what_other_threads_print_while_a_binding_is_imported_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_binding.py").write_text(
        "import threading\n"
        "thread = threading.Thread(target=print, args=['what the program prints'])\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    load("slow_binding", "slow")
    del sys.modules["slow_binding"]
    assert capsys.readouterr().out == "what the program prints\n"


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (None, {0: 0, 1: 1, 2: 2}),
        ("", {}),
        ("2,0", {2: 0, 0: 1}),
        ("GPU-b", {1: 0}),
        ("0,-1,2", {0: 0}),
        ("0,9,2", {0: 0}),
        ("GPU-", {}),
    ],
)
def test_visible_devices(setting: str | None, numbers: dict[int, int]) -> None:
    assert visible(setting, ["GPU-a", "GPU-b", "GPU-c"]) == numbers


def test_the_variables_of_another_process() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "3"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert variable_of(Subject(child.pid), "CUDA_VISIBLE_DEVICES") == "3"
        assert variable_of(Subject(child.pid), "TESSERA_NO_SUCH") is None
        child.communicate(b"\n")


def test_a_library_whose_devices_cannot_be_listed_is_ended(amd: AmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> list[int]:
        raise AmdSmi.AmdSmiException("AMDSMI_STATUS_NO_PERM")

    monkeypatch.setattr(amd, "amdsmi_get_processor_handles", failing)
    backend = AmdBackend("fake_amdsmi")
    capability = backend.capabilities(SUBJECT)["power_w"]
    assert (capability.reason, capability.remedy) == ("AMD SMI: AMDSMI_STATUS_NO_PERM", backend.remedy)
    assert backend.open(SUBJECT) == []
    assert amd.started == 0


def test_a_machine_whose_library_finds_no_device_needs_no_remedy(zes: Zes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sysman, "handles", lambda self, name, kind, *owner: [])
    capability = IntelBackend("fake_pyzes").capabilities(SUBJECT)["power_w"]
    assert (capability.reason, capability.remedy) == ("Level Zero finds no GPU", "none needed without an Intel GPU")
