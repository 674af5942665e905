"""Counters of whole processors that the kernel describes in /sys/bus/event_source/devices: memory controllers, energy.

Source: Linux `Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.profiling.counters.files import text
from tessera.profiling.counters.perf_event import PerfEvent, open_event, scaled

DEVICES: Final = Path("/sys/bus/event_source/devices")
_SINGLE: Final = struct.Struct("=3Q")
UNITS: Final = {"MiB": 2.0**20, "Joules": 1.0, "": 1.0}
"""Bytes or Joules in a unit of the `.unit` files."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An event of a PMU, on which processors it is read (one of each package), and what one count of it is worth."""

    event: PerfEvent
    cpus: tuple[int, ...]
    scale: float


def find(pattern: str, name: str, devices: Path = DEVICES) -> list[DeviceEvent]:
    """The event `name` of every PMU whose name matches a glob pattern; those that cannot be understood are left out."""
    found = []
    for folder in sorted(devices.glob(pattern)):
        term, kind = text(folder / "events" / name), text(folder / "type")
        config = None if term is None else _config(term, folder / "format")
        if config is None or kind is None or not kind.isdigit():
            continue
        worth = float(text(folder / "events" / f"{name}.scale") or 1)
        unit = UNITS.get(text(folder / "events" / f"{name}.unit") or "")
        if unit is not None:
            cpus = parse_cpus(text(folder / "cpumask") or "0")
            found.append(DeviceEvent(PerfEvent(f"{folder.name}/{name}", int(kind), config), cpus, worth * unit))
    return found


def _config(term: str, formats: Path) -> int | None:
    """`event=0x04,umask=0x03` as a number, by the fields' places in `format/`; None where a field is not there."""
    config = 0
    for part in term.split(","):
        name, _, value = part.partition("=")
        place = text(formats / name) or ""
        target, _, bits = place.partition(":")
        if target != "config" or not bits:
            return None
        low = int(bits.split(",")[0].split("-")[0])
        config |= int(value or "1", 0) << low
    return config


def parse_cpus(listed: str) -> tuple[int, ...]:
    """The processors of a list as the kernel writes it: "0,2-4" is 0, 2, 3, 4."""
    cpus: list[int] = []
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


class DeviceEvents:
    """Sums of events over all their processors. Raises OSError where one is refused."""

    def __init__(self, groups: Sequence[Sequence[DeviceEvent]]) -> None:
        self._groups: list[list[tuple[int, float]]] = []
        try:
            for group in groups:
                opened: list[tuple[int, float]] = []
                self._groups.append(opened)
                for each in group:
                    for cpu in each.cpus:
                        opened.append((open_event(each.event, pid=-1, cpu=cpu, inherit=True), each.scale))
        except OSError:
            self.close()
            raise

    def read(self) -> list[float]:
        """One sum for each group, in bytes or Joules, since it was opened."""
        return [
            sum(scaled(*_SINGLE.unpack(os.read(descriptor, _SINGLE.size))) * scale for descriptor, scale in group)
            for group in self._groups
        ]

    def close(self) -> None:
        """Ends counting."""
        for group in self._groups:
            while group:
                os.close(group.pop()[0])
