"""What moves between DRAM and the processors, counted by the memory controllers: the machine's, not one process'.

Intel servers have `uncore_imc_*/cas_count_read`, clients `uncore_imc/data_reads`; Arm and AMD differ by model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.profiling.counters import pmu
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject
from tessera.profiling.counters.perf_event import explain

_EVENTS: Final = {
    "dram_read_gbps": ("cas_count_read", "data_reads", "data_read"),
    "dram_write_gbps": ("cas_count_write", "data_writes", "data_write"),
}
_FIELDS: Final = tuple(Field(name, "GB/s", cumulative=True, scale=1e-9) for name in _EVENTS)


class DramSampler:
    """Bytes that the memory controllers read and wrote."""

    fields: Sequence[Field] = _FIELDS
    min_interval_ms = 10.0

    def __init__(self, events: Sequence[Sequence[pmu.DeviceEvent]]) -> None:
        self._counted = pmu.DeviceEvents(events)

    def read(self) -> Sequence[float]:
        return self._counted.read()

    def close(self) -> None:
        self._counted.close()


@dataclass(frozen=True)
class MemoryControllerBackend:
    """DRAM traffic of the machine."""

    devices: Path = pmu.DEVICES
    name: str = "memory-controller"
    activities: frozenset[str] = frozenset({"cpu", "memory"})

    def _events(self) -> list[list[pmu.DeviceEvent]]:
        groups = []
        for spellings in _EVENTS.values():
            found = (pmu.find("uncore_imc*", spelling, self.devices) for spelling in spellings)
            groups.append(next((events for events in found if events), []))
        return groups

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        reason, remedy = self._refusal(self._events()) or (None, "")
        return {name: Capability("GB/s", reason, remedy) for name in _EVENTS}

    def _refusal(self, groups: list[list[pmu.DeviceEvent]]) -> tuple[str, str] | None:
        if not all(groups):
            return (
                "the kernel shows no counters of memory controllers",
                "virtual machines hide them; look at the host",
            )
        try:
            pmu.DeviceEvents(groups).close()
        except OSError as error:
            return explain(error)
        return None

    def open(self, subject: Subject) -> Sequence[Sampler]:
        groups = self._events()
        return [] if self._refusal(groups) else [DramSampler(groups)]


BACKEND = MemoryControllerBackend()
