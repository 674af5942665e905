"""Profiles: what ran, how long it took, and how near it came to what the hardware can do.

from tessera import op, profile

with profile.session(exporters=[profile.chrome("trace.json")]) as session:
    with profile.region("forward"):
        y = op.softmax(op.matmul(a, b))
session.report()
"""

from __future__ import annotations

from pathlib import Path

from tessera.profiling.schema import Record
from tessera.profiling.sessions import Exporter, Session, counter, current, region, session

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


def chrome(path: str | Path) -> Exporter:
    """An exporter that writes a Chrome trace, which Perfetto opens, to `path` when the session ends."""
    from tessera.profiling.chrome import ChromeExporter

    return ChromeExporter(Path(path))


def parquet(path: str | Path) -> Exporter:
    """An exporter that writes all events as columns to `path`, a Parquet file, when the session ends."""
    from tessera.profiling.parquet import ParquetExporter

    return ParquetExporter(Path(path))


def summary(path: str | Path) -> Exporter:
    """An exporter that writes one line of CSV per operator to `path` when the session ends."""
    from tessera.profiling.summary import SummaryExporter

    return SummaryExporter(Path(path))


def timeline(path: str | Path) -> Path:
    """Writes the current session, or the last one that ended, as a Chrome trace and gives the file's path.

    Raises ProfileError (E_PROFILE) when no session has run or the file cannot be written.
    """
    return chrome(path).export(current())


def report() -> None:
    """Prints the report of the current session, or of the last one that ended. Raises ProfileError when there is
    none.
    """
    current().report()
