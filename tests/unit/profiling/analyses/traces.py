"""Traces made by hand, for the tests of analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.profiling.trace.table import Trace, frame

US = 1000
"""Nanoseconds."""


def trace(
    *events: Mapping[str, Any], capability: Mapping[str, str] | None = None, metadata: Mapping[str, Any] | None = None
) -> Trace:
    """A trace of events, each a mapping from columns to values; what one lacks is null."""
    names = list(dict.fromkeys(name for event in events for name in event))
    rows = sorted(events, key=lambda event: event.get("start_ns", 0))
    table = frame({name: [row.get(name) for row in rows] for name in names})
    return Trace(table.lazy(), {"source": "tessera", **(metadata or {})}, dict(capability or {}))


def kernel(name: str, start_us: float, dur_us: float, **columns: Any) -> dict[str, Any]:
    """A kernel of an operator."""
    event = {"kind": "kernel", "kernel_name": f"{name}_kernel", "operator": name}
    return {**event, "start_ns": round(US * start_us), "dur_ns": round(US * dur_us), **columns}


def collective(start_us: float, dur_us: float, nbytes: float, **columns: Any) -> dict[str, Any]:
    """An all-reduce."""
    event = {"kind": "collective", "kernel_name": "all_reduce", "collective_type": "all_reduce"}
    times = {"start_ns": round(US * start_us), "dur_ns": round(US * dur_us)}
    return {**event, **times, "collective_bytes": nbytes, **columns}


def repeated(name: str, durations_us: Sequence[float], **columns: Any) -> list[dict[str, Any]]:
    """Kernels one after the other, a microsecond apart."""
    events, at = [], 0.0
    for duration in durations_us:
        events.append(kernel(name, at, duration, **columns))
        at += duration + 1
    return events
