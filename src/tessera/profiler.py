"""The same names as `tessera.profile`."""

from __future__ import annotations

from tessera.profile import (
    Exporter,
    Record,
    Session,
    chrome,
    counter,
    parquet,
    region,
    report,
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
    "parquet",
    "region",
    "report",
    "session",
    "summary",
    "timeline",
]
