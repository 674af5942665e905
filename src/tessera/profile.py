"""Profiles: what ran, how long it took, and how near it came to what the hardware can do.

from tessera import op, profile

with profile.session(exporters=[profile.chrome("trace.json")]) as session:
    with profile.region("forward"):
        y = op.softmax(op.matmul(a, b))
session.report()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.profiling.export.contract import Exporter
from tessera.profiling.recording.instrumentation import counter
from tessera.profiling.session.region import region
from tessera.profiling.session.sessions import Session, current
from tessera.profiling.session.starting import session, start, stop
from tessera.profiling.session.steps import Schedule
from tessera.profiling.trace.schema import Record

if TYPE_CHECKING:
    from tessera.profiling.export.formats.otlp.exporter import OtlpExporter
    from tessera.profiling.export.formats.prometheus import PrometheusExporter
    from tessera.profiling.trace.table import Trace

__all__ = [
    "Exporter",
    "Record",
    "Schedule",
    "Session",
    "chrome",
    "counter",
    "html",
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


def chrome(path: str | Path) -> Exporter:
    """An exporter that writes a Chrome trace, which Perfetto opens, to `path` when the session ends."""
    from tessera.profiling.export.formats.chrome import ChromeExporter

    return ChromeExporter(Path(path))


def parquet(path: str | Path) -> Exporter:
    """An exporter that writes all events as columns to `path`, a Parquet file, when the session ends."""
    from tessera.profiling.export.formats.parquet import ParquetExporter

    return ParquetExporter(Path(path))


def html(path: str | Path, *, redact: bool = False) -> Exporter:
    """An exporter that writes a report in one file, which any browser opens, to `path` when the session ends. `redact`
    leaves out host names, process numbers and Python stacks.
    """
    from tessera.profiling.export.formats.html import HtmlExporter

    return HtmlExporter(Path(path), redact)


def schedule(*, wait: int = 0, warmup: int = 0, active: int = 1, repeat: int = 0) -> Schedule:
    """Which steps of a training loop a session records: cycles of `wait` steps at no cost, `warmup` steps that are
    thrown away, and `active` ones that are kept; `repeat` cycles, 0 for no end. The program calls `Session.step()`
    after each step.

    Raises ArgumentError for numbers below 0, or no active step.
    """
    return Schedule(wait, warmup, active, repeat)


def read(path: str | Path) -> Trace:
    """The trace in a file, of Tessera's or of other profilers, or those of several ranks in a folder as one.

    Raises ProfileError (E_PROFILE) where there is no such file, its format is not known, or it is damaged.
    """
    from tessera.profiling.trace import reading

    return reading.read(path)


def summary(path: str | Path) -> Exporter:
    """An exporter that writes one line of CSV per operator to `path` when the session ends."""
    from tessera.profiling.export.formats.summary import SummaryExporter

    return SummaryExporter(Path(path))


def prometheus(path: str | Path | None = None) -> PrometheusExporter:
    """An exporter of totals and last values in Prometheus' text format: to `path` when the session ends, else to its
    attribute `latest`, for a program's own /metrics page.
    """
    from tessera.profiling.export.formats.prometheus import PrometheusExporter

    return PrometheusExporter(None if path is None else Path(path))


def rocprof_csv(path: str | Path) -> Exporter:
    """An exporter that writes the kernels to `path`, as rocprofv3 writes its kernel trace, when the session ends."""
    from tessera.profiling.export.formats.rocprof_csv import RocprofCsvExporter

    return RocprofCsvExporter(Path(path))


def otlp(
    endpoint: str,
    *,
    service: str = "tessera",
    headers: Mapping[str, str] | None = None,
    give_up_s: float = 60.0,
    waiting_profiles: int = 16,
) -> OtlpExporter:
    """An exporter that sends spans and metrics to an OpenTelemetry collector, from a thread of its own.

    Args:
        endpoint: `http://host:4318` (or https) for HTTP, `grpc://host:4317` (or grpcs) for gRPC.
        service: `service.name` of the spans.
        headers: sent along, as for authorization.
        give_up_s: how long a request is tried again while the collector is away; then its items count as dropped.
        waiting_profiles: how many sessions wait at most; those beyond count as dropped.

    The exporter's `sent` and `dropped` count spans and points, `flush()` waits for them. A program that ends waits five
    seconds at most for what is on its way. Raises ArgumentError for an
    endpoint that is none, and ProfileError without the extra `otlp`.
    """
    from tessera.profiling.export.formats.otlp.exporter import OtlpExporter

    return OtlpExporter(endpoint, service, headers, give_up_s, waiting_profiles)


def timeline(path: str | Path) -> Path:
    """Writes the current session, or the last one that ended, as a Chrome trace and gives the file's path.

    Raises ProfileError (E_PROFILE) when no session has run or the file cannot be written.
    """
    from tessera.profiling.export.formats.chrome import ChromeExporter

    return ChromeExporter(Path(path)).export(current().trace())


def report() -> None:
    """Prints the report of the current session, or of the last one that ended. Raises ProfileError when there is
    none.
    """
    current().report()
