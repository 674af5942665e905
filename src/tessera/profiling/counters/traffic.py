"""What a computation moves between memory levels, by the processor's own counters: the measured side of estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.profiling.counters.interfaces import Capability, Subject
from tessera.profiling.counters.perf_event import HARDWARE_EVENTS, PerfEvent, ProcessEvents, refusal

LINE_BYTES: Final = 64
"""Of the caches that these events count, on x86-64 and on Arm's server cores."""

_BY_NAME: Final = {event.name: event for event in HARDWARE_EVENTS}
LEVELS: Final[Mapping[str, Sequence[PerfEvent]]] = {
    "L3": (_BY_NAME["cache_references"],),
    "DRAM": (_BY_NAME["llc_read_misses"], _BY_NAME["llc_write_misses"]),
}
"""Events that each move one line between a level and the one nearer to the core."""


@dataclass(frozen=True)
class MeasuredTraffic:
    """Bytes by memory level in one run. A level that cannot be counted is missing; `capability` says why.

    Lines that the hardware fetched ahead of time are counted by some processors and not by others, so that DRAM may
    come out too low; the memory controllers (`memory-controller` in samples) count all of it, for the whole machine.
    """

    nbytes: Mapping[str, float]
    capability: Mapping[str, Capability]


def measured(
    run: Callable[[], object], *, repeats: int = 10, levels: Mapping[str, Sequence[PerfEvent]] = LEVELS
) -> MeasuredTraffic:
    """The traffic of one `run()`, as the mean of `repeats` after one that warms the caches, counted in all threads of
    this process: nothing else should run in it meanwhile.
    """
    subject = Subject()
    refused = {name: why for name, events in levels.items() if (why := _refusal(events, subject.pid)) is not None}
    capability = {name: Capability("B", *why) for name, why in refused.items()}
    counted = [(name, event) for name, events in levels.items() if name not in refused for event in events]
    if not counted:
        return MeasuredTraffic({}, capability)
    run()
    with ProcessEvents([event for _, event in counted], subject.pid) as events:
        before = events.read()
        for _ in range(repeats):
            run()
        after = events.read()
    nbytes: dict[str, float] = {}
    for (name, _), first, last in zip(counted, before, after, strict=True):
        nbytes[name] = nbytes.get(name, 0.0) + LINE_BYTES * (last - first) / repeats
    for name in [name for name, value in nbytes.items() if math.isnan(value)]:
        del nbytes[name]
        capability[name] = Capability("B", "the counter never got onto the processor", "run it for longer")
    return MeasuredTraffic(nbytes, capability)


def _refusal(events: Sequence[PerfEvent], pid: int) -> tuple[str, str] | None:
    return next((why for event in events if (why := refusal(event, pid)) is not None), None)
