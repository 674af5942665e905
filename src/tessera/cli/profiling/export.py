"""The files that `tessera-prof` writes, by the endings of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tessera.errors import ProfileError
from tessera.profiling.export.formats.summary import SummaryExporter
from tessera.profiling.export.registry import exporter_to
from tessera.profiling.session import delivery
from tessera.profiling.trace.table import Trace


def write(trace: Trace, exports: Sequence[Path], summary_path: Path | None) -> list[Path]:
    """Writes all events to each of `exports`, and one line of CSV per operator to `summary_path`; the files.

    Where one cannot be written the others are, and all events are kept in the cache folder; ProfileError says where.
    """
    exporters = [(path, exporter_to(path)) for path in exports]
    if summary_path is not None:
        exporters.append((summary_path, SummaryExporter(summary_path)))
    failures = []
    for _, exporter in exporters:
        try:
            exporter.export(trace)
        except ProfileError as failure:
            failures.append(failure)
    if failures:
        told = "; ".join(failure.message for failure in failures)
        raise ProfileError(
            f"{told}. {delivery.kept(trace)}", hints=["tessera-prof report FILE reads it"]
        ) from failures[0]
    return [path for path, _ in exporters]
