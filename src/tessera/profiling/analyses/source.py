"""What `trace=` takes: a path, a trace, or a session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tessera.errors import ArgumentError
from tessera.profiling import table, trace
from tessera.profiling.recording import Recording
from tessera.profiling.table import KINDS, Trace

Source: TypeAlias = str | Path | Trace | Recording


def open_trace(source: Source) -> Trace:
    """The trace that a user means. Raises ProfileError or ArgumentError for a file that is none."""
    if isinstance(source, Trace):
        return source
    if isinstance(source, Recording):
        return source.trace()
    path = Path(source)
    return _chrome(path) if path.suffix == ".json" else trace.read(path)


def _chrome(path: Path) -> Trace:
    try:
        content = json.loads(path.read_text())
        rows = list(_rows(content["traceEvents"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{path} is no Chrome trace: {type(error).__name__} {error}") from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = table.frame({name: [row.get(name) for row in rows] for name in names})
    other = content.get("otherData", {})
    capability = {name: str(why) for name, why in other.get("unavailable", {}).items() if name in table.COLUMNS}
    return Trace(frame.sort("start_ns").lazy(), {"source": "tessera", **other}, capability)


def _rows(events: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in events:
        kind = event.get("cat", "kernel")
        if event.get("ph") != "X" or kind not in KINDS:
            continue
        told = event.get("args", {})
        named = {name: value for name, value in told.items() if name in table.COLUMNS and not isinstance(value, list)}
        if kind == "collective":
            named["collective_type"] = event["name"]
            named["collective_bytes"] = told.get("bytes")
            named["collective_overlap_pct"] = told.get("overlap_pct")
        yield {
            **named,
            "kind": kind,
            "kernel_name": told.get("kernel", event["name"]),
            "operator": event["name"],
            "start_ns": round(1000 * float(event.get("ts", 0))),
            "dur_ns": round(1000 * float(event.get("dur", 0))),
        }
