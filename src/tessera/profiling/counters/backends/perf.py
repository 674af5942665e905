"""Hardware and software events of the subject's threads, through `perf_event_open`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject
from tessera.profiling.counters.perf_event import (
    HARDWARE_EVENTS,
    SOFTWARE_EVENTS,
    PerfEvent,
    ProcessEvents,
    available,
    refusal,
)


class EventSampler:
    """Rates of events, user mode only except for those that happen in the kernel."""

    min_interval_ms = 250.0  # a system call for each event and thread

    def __init__(self, events: Sequence[PerfEvent], pid: int) -> None:
        self.fields: Sequence[Field] = [_field(event) for event in events]
        self._counted = ProcessEvents(events, pid)

    def read(self) -> Sequence[float]:
        return self._counted.read()

    def close(self) -> None:
        self._counted.close()


def _field(event: PerfEvent) -> Field:
    if event.name == "task_clock":  # nanoseconds
        return Field("task_clock", "s/s", cumulative=True, scale=1e-9)
    return Field(event.name, "1/s", cumulative=True)


@dataclass(frozen=True)
class PerfBackend:
    """Cycles, instructions, cache and branch misses where the processor counts them; faults, switches, migrations."""

    events: tuple[PerfEvent, ...] = (*HARDWARE_EVENTS, *SOFTWARE_EVENTS)
    name: str = "perf"
    activities: frozenset[str] = frozenset({"cpu"})

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        found = {}
        for event in self.events:
            why = refusal(event, subject.pid)
            found[event.name] = Capability(_field(event).unit, *(why or ()))
        return found

    def open(self, subject: Subject) -> Sequence[Sampler]:
        events = available(self.events, subject.pid)
        return [EventSampler(events, subject.pid)] if events else []


BACKEND = PerfBackend()
