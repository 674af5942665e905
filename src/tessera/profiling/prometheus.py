"""Prometheus' text format (exposition format 0.0.4): totals of a session, and last values of counters and samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
from polars import col

from tessera.profiling.output import exported
from tessera.profiling.table import Trace

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session

Sample = tuple[dict[str, Any], float]
"""Labels and a value."""


class PrometheusExporter:
    """Writes a session's text to a file, as node_exporter's textfile collector reads it, or keeps it in `latest`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.latest = ""
        """What the last session that was exported says; for a program's own /metrics page."""

    def export(self, session: Session) -> str:
        """Gives the text. Raises ProfileError when the file cannot be written."""
        self.latest = text(session.trace())
        if self._path is not None:
            with exported(self._path, "text for Prometheus") as file:
                file.write(self.latest.encode())
        return self.latest


def text(trace: Trace) -> str:
    """A trace's totals and last values."""
    return "".join(line for metric in _metrics(trace) for line in _lines(*metric))


def _metrics(trace: Trace) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """(name, type, help, samples) of each metric."""
    told = trace.metadata
    reasons = told.get("dropped_reasons", {}).items()
    yield "tessera_kernels_launched_total", "counter", "Kernels that ran.", [({}, told.get("launched", 0))]
    yield "tessera_kernels_recorded_total", "counter", "Kernels with a record.", [({}, told.get("recorded", 0))]
    dropped = [({"reason": reason}, float(count)) for reason, count in reasons]
    yield "tessera_kernels_dropped_total", "counter", "Kernels without a record, by reason.", dropped
    kernels = trace.events.filter(col("kind") == "kernel").select(
        col("operator", "dtype").cast(polars.String), "dur_ns", "flops", "bytes"
    )
    sums = kernels.group_by("operator", "dtype").agg(polars.len(), col("dur_ns", "flops", "bytes").sum())
    rows = sums.sort("operator", "dtype").collect().rows(named=True)
    labels = [{"operator": row["operator"], "dtype": row["dtype"]} for row in rows]
    for name, column, scale, what in (
        ("calls", "len", 1, "Kernels of an operator."),
        ("seconds", "dur_ns", 1e-9, "Time that an operator's kernels took."),
        ("flops", "flops", 1, "Floating-point operations of an operator."),
        ("bytes", "bytes", 1, "Bytes of an operator: operands read once, results written once."),
    ):
        samples = [(told, scale * row[column]) for told, row in zip(labels, rows, strict=True)]
        yield f"tessera_operator_{name}_total", "counter", what, samples
    last = (
        trace.events.filter(col("kind").is_in(("counter", "sample")) & col("value").is_not_null())
        .select("kind", col("kernel_name", "device", "unit").cast(polars.String), "value", "start_ns")
        .group_by("kind", "kernel_name", "device", "unit")
        .agg(col("value").sort_by("start_ns").last())
        .sort("kernel_name", "device", "unit")
        .collect()
    )
    for kind, what in (("counter", "Last value of a counter of the program's."), ("sample", "Last value of a sensor.")):
        of_kind = last.filter(col("kind") == kind).rows(named=True)
        samples = [
            ({"name": row["kernel_name"], "device": row["device"], "unit": row["unit"]}, row["value"])
            for row in of_kind
        ]
        yield f"tessera_{kind}", "gauge", what, samples


def _lines(name: str, kind: str, what: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {what}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        told = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items() if label is not None)
        yield f"{name}{{{told}}} {float(value)!r}\n" if told else f"{name} {float(value)!r}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
