"""The same names as `tessera.profile`."""

from __future__ import annotations

from tessera.profile import (
    Exporter,
    Record,
    Session,
    chrome,
    counter,
    otlp,
    parquet,
    prometheus,
    region,
    report,
    rocprof_csv,
    session,
    summary,
    timeline,
)

__all__ = [
    "Exporter",
    "Record",
    "Session",
    "chrome",
    "counter",
    "otlp",
    "parquet",
    "prometheus",
    "region",
    "report",
    "rocprof_csv",
    "session",
    "summary",
    "timeline",
]
