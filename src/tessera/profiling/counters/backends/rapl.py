"""Energy of CPU packages and of DRAM, as the processors estimate it (RAPL): powercap in /sys, else perf's PMU "power".

Sources: Linux `Documentation/power/powercap/powercap.rst`; Intel SDM volume 3, 15.10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.profiling.counters import pmu
from tessera.profiling.counters.files import PolledFile, text, why_unreadable
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject
from tessera.profiling.counters.perf_event import explain

_DOMAINS: Final = {"power_w": "package", "core_power_w": "core", "dram_power_w": "dram"}
"""Fields by the name that powercap gives to a zone, without a package's number."""
_PMU: Final = {"power_w": "energy-pkg", "core_power_w": "energy-cores", "dram_power_w": "energy-ram"}


class EnergyZone:
    """One counter of powercap in microjoules, which starts over at its range."""

    def __init__(self, folder: Path) -> None:
        self._file = PolledFile(folder / "energy_uj")
        self._range = float(text(folder / "max_energy_range_uj") or "inf")
        self._last = self._file.number()
        self._total = 0.0

    def joules(self) -> float:
        """Energy since it was opened."""
        now = self._file.number()
        step = now - self._last
        self._total += step if step >= 0 else step + self._range
        self._last = now
        return self._total / 1e6

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class PowercapSampler:
    """Power of all packages together, by domain."""

    min_interval_ms = 10.0  # the counters move about every millisecond

    def __init__(self, zones: Mapping[str, Sequence[Path]]) -> None:
        self.fields: Sequence[Field] = [Field(name, "W", cumulative=True) for name in zones]
        self._zones = [[EnergyZone(folder) for folder in folders] for folders in zones.values()]

    def read(self) -> Sequence[float]:
        return [sum(zone.joules() for zone in zones) for zones in self._zones]

    def close(self) -> None:
        for zones in self._zones:
            for zone in zones:
                zone.close()


class PmuSampler:
    """The same through perf, for whole processors."""

    min_interval_ms = 10.0

    def __init__(self, events: Mapping[str, Sequence[pmu.DeviceEvent]]) -> None:
        self.fields: Sequence[Field] = [Field(name, "W", cumulative=True) for name in events]
        self._counted = pmu.DeviceEvents(list(events.values()))

    def read(self) -> Sequence[float]:
        return self._counted.read()

    def close(self) -> None:
        self._counted.close()


@dataclass(frozen=True)
class RaplBackend:
    """Power of the CPU's packages, cores and DRAM."""

    powercap: Path = Path("/sys/class/powercap")
    devices: Path = pmu.DEVICES
    name: str = "rapl"
    activities: frozenset[str] = frozenset({"cpu", "power"})

    def zones(self) -> dict[str, list[Path]]:
        """Folders of powercap by field; the interface for memory-mapped counters repeats zones and is left out."""
        found: dict[str, list[Path]] = {}
        for folder in sorted(self.powercap.glob("*-rapl:*")):
            label = (text(folder / "name") or "").split("-")[0]
            for field, domain in _DOMAINS.items():
                if label == domain and not folder.name.startswith("intel-rapl-mmio"):
                    found.setdefault(field, []).append(folder)
        return found

    def _readable_zones(self) -> dict[str, list[Path]]:
        return {
            field: folders
            for field, folders in self.zones().items()
            if all(text(folder / "energy_uj") is not None for folder in folders)
        }

    def _events(self) -> tuple[dict[str, list[pmu.DeviceEvent]], tuple[str, str] | None]:
        """Events of the PMU by field, and why they are refused."""
        found = {field: events for field, name in _PMU.items() if (events := pmu.find("power", name, self.devices))}
        try:
            pmu.DeviceEvents(list(found.values())).close()
        except OSError as error:
            return {}, explain(error)
        return found, None

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        zones, readable, (events, refused) = self.zones(), self._readable_zones(), self._events()
        found = {}
        for field in _DOMAINS:
            if field in readable or (not readable and field in events):
                found[field] = Capability("W")
            elif field in zones:
                why = why_unreadable(zones[field][0] / "energy_uj")
                found[field] = Capability("W", why, "sudo chmod a+r /sys/class/powercap/*/energy_uj, or run as root")
            elif refused:
                found[field] = Capability("W", *refused)
            else:
                found[field] = Capability(
                    "W",
                    "the processor shows no such energy counter",
                    "virtual machines hide RAPL; look at the host",
                )
        return found

    def open(self, subject: Subject) -> Sequence[Sampler]:
        if zones := self._readable_zones():
            return [PowercapSampler(zones)]
        events, _ = self._events()
        return [PmuSampler(events)] if events else []


BACKEND = RaplBackend()
