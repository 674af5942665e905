"""The same names as `tessera.profile`."""

from __future__ import annotations

from tessera.profile import (
    Exporter,
    Record,
    Schedule,
    Session,
    chrome,
    counter,
    otlp,
    parquet,
    prometheus,
    read,
    region,
    report,
    rocprof_csv,
    schedule,
    session,
    start,
    stop,
    summary,
    timeline,
)

__all__ = [
    "Exporter",
    "Record",
    "Schedule",
    "Session",
    "chrome",
    "counter",
    "otlp",
    "parquet",
    "prometheus",
    "read",
    "region",
    "report",
    "rocprof_csv",
    "schedule",
    "session",
    "start",
    "stop",
    "summary",
    "timeline",
]
