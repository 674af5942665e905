"""What the system says of the machine: processors' time, clocks, temperatures, throttling.

Sources: proc(5); Linux `Documentation/admin-guide/pm/cpufreq.rst`, `Documentation/hwmon/sysfs-interface.rst`,
`Documentation/ABI/testing/sysfs-devices-system-cpu` (thermal_throttle).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.profiling.counters.files import PolledFile, text
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject

_UTILIZATION: Final = ("machine_cpu_pct", "idle_pct", "iowait_pct", "steal_pct")
_CHIPS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "scmi_sensors")
_ZONES: Final = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc_thermal", "acpitz")

_FREQUENCY: Final = Field("frequency_mhz", "MHz")
_TEMPERATURE: Final = Field("temp_c", "C", scale=1e-3)
_THROTTLE: Final = Field("throttle_reason", "", bits={0: "thermal"})
_VIRTUAL: Final = "virtual machines rarely have it; look at the host"


class UtilizationSampler:
    """Share of all processors' time that was busy, idle, waited for disks, and was taken by the hypervisor.

    The kernel counts in ticks of its own, some of which come late: by another clock a busy machine is above 100 %.
    """

    min_interval_ms = 500.0  # the kernel counts in hundredths of a second

    fields: Sequence[Field] = tuple(Field(name, "%", cumulative=True, share=True, scale=100.0) for name in _UTILIZATION)

    def __init__(self, path: Path) -> None:
        # The first line holds the sum over processors; the rest is long on large machines.
        self._file = PolledFile(path, 256)

    def read(self) -> Sequence[float]:
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, self._file.read().split(None, 9)[1:9])
        return user + nice + system + irq + softirq, idle, iowait, steal

    def close(self) -> None:
        self._file.close()


class FrequencySampler:
    """Mean over the processors of what cpufreq says that they run at."""

    fields: Sequence[Field] = (_FREQUENCY,)
    min_interval_ms = 100.0

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [PolledFile(path) for path in paths]

    def read(self) -> Sequence[float]:
        return (1e-3 * math.fsum(file.number() for file in self._files) / len(self._files),)

    def close(self) -> None:
        for file in self._files:
            file.close()


class CpuinfoSampler:
    """Mean of the "cpu MHz" lines of /proc/cpuinfo, where there is no cpufreq."""

    fields: Sequence[Field] = (_FREQUENCY,)
    min_interval_ms = 1000.0  # the system interrupts every processor for it

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Sequence[float]:
        clocks = cpuinfo_clocks(self._path)
        return (math.fsum(clocks) / len(clocks) if clocks else math.nan,)

    def close(self) -> None:
        """Holds nothing."""


class TemperatureSampler:
    """The hottest of the CPU's sensors."""

    fields: Sequence[Field] = (_TEMPERATURE,)
    min_interval_ms = 100.0

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [PolledFile(path) for path in paths]

    def read(self) -> Sequence[float]:
        known = [value for file in self._files if not math.isnan(value := file.number())]
        return (max(known, default=math.nan),)

    def close(self) -> None:
        for file in self._files:
            file.close()


class ThrottleSampler:
    """A mask with bit 0 set where a processor was slowed down for its heat since the last reading."""

    fields: Sequence[Field] = (_THROTTLE,)
    min_interval_ms = 100.0

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [PolledFile(path) for path in paths]
        self._count = self._read()

    def _read(self) -> float:
        return math.fsum(file.number() for file in self._files)

    def read(self) -> Sequence[float]:
        before, self._count = self._count, self._read()
        return (1.0 if self._count > before else 0.0,)

    def close(self) -> None:
        for file in self._files:
            file.close()


def cpuinfo_clocks(path: Path) -> list[float]:
    """The clock of each processor in MHz, as /proc/cpuinfo has it; empty where it does not (Arm)."""
    lines = (text(path) or "").splitlines()
    return [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]


def temperature_files(sys: Path) -> list[Path]:
    """The inputs of the CPU's own chips among hwmon, else of its thermal zones; thousandths of a degree Celsius."""
    chips = (chip for chip in sorted((sys / "class/hwmon").glob("hwmon*")) if text(chip / "name") in _CHIPS)
    inputs = [path for chip in chips for path in sorted(chip.glob("temp*_input"))]
    zones = (zone for zone in sorted((sys / "class/thermal").glob("thermal_zone*")) if text(zone / "type") in _ZONES)
    return [path for path in inputs or [zone / "temp" for zone in zones] if text(path) is not None]


@dataclass(frozen=True)
class MachineBackend:
    """Utilization, clock, temperature and throttling of the CPUs."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    name: str = "machine"
    activities: frozenset[str] = frozenset({"cpu", "power"})

    def _frequencies(self) -> list[Path]:
        return _readable(sorted(self.sys.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")))

    def _throttles(self) -> list[Path]:
        return _readable(sorted(self.sys.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")))

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        stat = None if text(self.proc / "stat") else f"{self.proc / 'stat'} cannot be read"
        found = {name: Capability("%", stat) for name in _UTILIZATION}
        clock = bool(self._frequencies() or cpuinfo_clocks(self.proc / "cpuinfo"))
        found["frequency_mhz"] = _capability(_FREQUENCY, clock, "neither cpufreq nor /proc/cpuinfo tells clocks")
        heat = bool(temperature_files(self.sys))
        found["temp_c"] = _capability(_TEMPERATURE, heat, "no sensor of the CPU in /sys/class/hwmon or thermal")
        slowed = bool(self._throttles())
        found["throttle_reason"] = _capability(_THROTTLE, slowed, "no thermal_throttle counts of the processors")
        return found

    def open(self, subject: Subject) -> Sequence[Sampler]:
        samplers: list[Sampler] = []
        if text(self.proc / "stat"):
            samplers.append(UtilizationSampler(self.proc / "stat"))
        if paths := self._frequencies():
            samplers.append(FrequencySampler(paths))
        elif cpuinfo_clocks(self.proc / "cpuinfo"):
            samplers.append(CpuinfoSampler(self.proc / "cpuinfo"))
        if paths := temperature_files(self.sys):
            samplers.append(TemperatureSampler(paths))
        if paths := self._throttles():
            samplers.append(ThrottleSampler(paths))
        return samplers


def _readable(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if text(path) is not None]


def _capability(field: Field, available: bool, reason: str) -> Capability:
    return Capability(field.unit) if available else Capability(field.unit, reason, _VIRTUAL)


BACKEND = MachineBackend()
