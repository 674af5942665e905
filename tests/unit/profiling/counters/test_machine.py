"""Sensors and energy counters from trees that look like /sys and /proc, and from those of this machine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tessera.profiling.counters import pmu
from tessera.profiling.counters.backends.machine import MachineBackend, UtilizationSampler
from tessera.profiling.counters.backends.memory_controller import MemoryControllerBackend
from tessera.profiling.counters.backends.rapl import EnergyZone, RaplBackend
from tessera.profiling.counters.interfaces import Sampler, Subject

HERE = Subject()


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


@pytest.fixture
def server(tmp_path: Path) -> MachineBackend:
    """Two processors with cpufreq, coretemp and throttle counts, as Linux shows them on a Xeon."""
    cpu = "devices/system/cpu/cpu"
    write(
        tmp_path / "sys",
        {
            f"{cpu}0/cpufreq/scaling_cur_freq": "2000000",
            f"{cpu}1/cpufreq/scaling_cur_freq": "3000000",
            f"{cpu}0/thermal_throttle/core_throttle_count": "3",
            f"{cpu}1/thermal_throttle/package_throttle_count": "0",
            "class/hwmon/hwmon0/name": "nvme",
            "class/hwmon/hwmon0/temp1_input": "80000",
            "class/hwmon/hwmon1/name": "coretemp",
            "class/hwmon/hwmon1/temp1_input": "51000",
            "class/hwmon/hwmon1/temp2_input": "55500",
        },
    )
    write(tmp_path / "proc", {"stat": "cpu  100 10 50 1000 20 3 4 5 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0"})
    return MachineBackend(proc=tmp_path / "proc", sys=tmp_path / "sys")


def readings(samplers: list[Sampler]) -> dict[str, float]:
    return {
        field.name: value * field.scale
        for sampler in samplers
        for field, value in zip(sampler.fields, sampler.read(), strict=True)
    }


def test_clock_heat_and_throttling_of_a_server(server: MachineBackend, tmp_path: Path) -> None:
    assert all(each.available for each in server.capabilities(HERE).values())
    samplers = list(server.open(HERE))
    first = readings(samplers)
    write(tmp_path / "sys", {"devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "4"})
    second = readings(samplers)
    for sampler in samplers:
        sampler.close()

    assert first["frequency_mhz"] == pytest.approx(2500)
    assert first["temp_c"] == pytest.approx(55.5)  # the disk's is none of the CPU's
    assert (first["throttle_reason"], second["throttle_reason"]) == (0, 1)


def test_utilization_counts_all_processors(tmp_path: Path) -> None:
    write(tmp_path, {"stat": "cpu  100 10 50 1000 20 3 4 5 0 0"})
    sampler = UtilizationSampler(tmp_path / "stat")
    assert list(sampler.read()) == [167, 1000, 20, 5]
    sampler.close()


def test_thermal_zones_where_there_is_no_chip(tmp_path: Path) -> None:
    write(tmp_path, {"class/thermal/thermal_zone0/type": "cpu-thermal", "class/thermal/thermal_zone0/temp": "47000"})
    backend = MachineBackend(proc=tmp_path, sys=tmp_path)
    samplers = list(backend.open(HERE))
    assert readings(samplers) == {"temp_c": pytest.approx(47)}
    for sampler in samplers:
        sampler.close()


def test_a_machine_without_sensors_says_so(tmp_path: Path) -> None:
    backend = MachineBackend(proc=tmp_path, sys=tmp_path)
    found = backend.capabilities(HERE)
    assert backend.open(HERE) == []
    assert {"temp_c", "frequency_mhz", "throttle_reason", "machine_cpu_pct"} <= found.keys()
    assert all(each.reason for each in found.values())


def rapl(root: Path, energies: dict[str, str]) -> RaplBackend:
    names = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:0": "dram"}
    write(root, {f"{zone}/name": name for zone, name in names.items()})
    write(root, {f"{zone}/energy_uj": energy for zone, energy in energies.items()})
    write(root, {f"{zone}/max_energy_range_uj": "1000000" for zone in names})
    return RaplBackend(powercap=root, devices=root / "none")


def test_energy_of_packages_is_added_and_starts_over_at_its_range(tmp_path: Path) -> None:
    backend = rapl(tmp_path, {"intel-rapl:0": "900000", "intel-rapl:1": "100000", "intel-rapl:0:0": "0"})
    (sampler,) = backend.open(HERE)
    assert [field.name for field in sampler.fields] == ["power_w", "dram_power_w"]
    rapl(tmp_path, {"intel-rapl:0": "100000", "intel-rapl:1": "300000", "intel-rapl:0:0": "50000"})
    assert list(sampler.read()) == pytest.approx([0.2 + 0.2, 0.05])
    sampler.close()
    capabilities = backend.capabilities(HERE)
    assert capabilities["power_w"].available
    assert not capabilities["core_power_w"].available


def test_energy_that_may_not_be_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    backend = rapl(tmp_path, {})
    for zone in backend.zones()["power_w"]:
        (zone / "energy_uj").symlink_to(zone / "missing")
    found = backend.capabilities(HERE)["power_w"]
    assert "energy_uj" in str(found.reason)
    assert "chmod" in found.remedy
    assert backend.open(HERE) == []


def test_a_zone_counts_from_where_it_was_opened(tmp_path: Path) -> None:
    write(tmp_path, {"energy_uj": "999999", "max_energy_range_uj": "1000000"})
    zone = EnergyZone(tmp_path)
    assert zone.joules() == 0
    write(tmp_path, {"energy_uj": "1"})
    assert zone.joules() == pytest.approx(2e-6)
    zone.close()


def test_an_event_of_a_pmu_is_read_as_the_kernel_describes_it(tmp_path: Path) -> None:
    files = {
        "type": "24",
        "cpumask": "0,28",
        "format/event": "config:0-7",
        "format/umask": "config:8-15",
        "events/cas_count_read": "event=0x04,umask=0x03",
        "events/cas_count_read.scale": "6.103515625e-5",
        "events/cas_count_read.unit": "MiB",
    }
    write(tmp_path / "uncore_imc_0", files)
    write(tmp_path / "uncore_imc_1", {**files, "events/cas_count_read": "config9=1"})
    (found,) = pmu.find("uncore_imc*", "cas_count_read", tmp_path)
    assert (found.event.type, found.event.config, found.cpus) == (24, 0x0304, (0, 28))
    assert found.scale == pytest.approx(64)  # a transfer is one line of 64 bytes


@pytest.mark.parametrize(("listed", "cpus"), [("0", (0,)), ("0,2-4\n", (0, 2, 3, 4)), ("", ())])
def test_lists_of_processors(listed: str, cpus: tuple[int, ...]) -> None:
    assert pmu.parse_cpus(listed) == cpus


def test_memory_controllers_that_are_not_there_are_a_capability(tmp_path: Path) -> None:
    backend = MemoryControllerBackend(devices=tmp_path)
    assert all("memory controllers" in str(each.reason) for each in backend.capabilities(HERE).values())
    assert backend.open(HERE) == []


@pytest.mark.parametrize("backend", [MachineBackend(), RaplBackend(), MemoryControllerBackend()])
def test_this_machine_gives_what_it_says(backend: MachineBackend | RaplBackend | MemoryControllerBackend) -> None:
    claimed = {name for name, each in backend.capabilities(HERE).items() if each.available}
    samplers = list(backend.open(HERE))
    values = readings(samplers)
    for sampler in samplers:
        sampler.close()
    assert values.keys() == claimed
    assert all(value >= 0 or math.isnan(value) for value in values.values())
