"""The files that `tessera-prof` writes, by the endings of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling import chrome, delivery, parquet, report, rocprof_csv, summary
from tessera.profiling.aggregate import OperatorRow, by_operator_in
from tessera.profiling.recorded_target import recorded_target
from tessera.profiling.table import Trace
from tessera.viewer import one_file
from tessera.viewer.runs import run_of


def html(trace: Trace, path: Path) -> Path:
    """Writes a trace as a report in one file and gives its path. Raises ProfileError when it cannot be written."""
    return one_file.write([run_of(trace, path.stem)], path)


FORMATS: Final[dict[str, Callable[[Trace, Path], Path]]] = {
    ".json": chrome.write,
    ".json.gz": chrome.write,
    ".parquet": parquet.write,
    ".csv": rocprof_csv.write,
    ".html": html,
}


def format_of(path: Path) -> str:
    """The ending that decides the format. Raises ArgumentError for one that there is not."""
    found = next((ending for ending in FORMATS if path.name.endswith(ending)), None)
    if found is None:
        raise ArgumentError(f"{path}: the format is not known", hints=[f"endings are {', '.join(FORMATS)}"])
    return found


def write(trace: Trace, exports: Sequence[Path], summary_path: Path | None) -> list[Path]:
    """Writes all events to each of `exports`, and one line of CSV per operator to `summary_path`; the files.

    Where one cannot be written the others are, and all events are kept in the cache folder; ProfileError says where.
    """
    writers = [(path, partial(FORMATS[format_of(path)], trace)) for path in exports]
    if summary_path is not None:
        writers.append((summary_path, partial(summary.write, operator_rows(trace))))
    failures = []
    for path, writer in writers:
        try:
            writer(path)
        except ProfileError as failure:
            failures.append(failure)
    if failures:
        told = "; ".join(failure.message for failure in failures)
        raise ProfileError(
            f"{told}. {delivery.kept(lambda: trace)}", hints=["tessera-prof report FILE reads it"]
        ) from failures[0]
    return [path for path, _ in writers]


def operator_rows(trace: Trace) -> list[OperatorRow]:
    """What ran, operator by operator; held against the ceilings of the CPU that it ran on where they are known."""
    target = recorded_target(trace.metadata)
    return by_operator_in(trace, None if target is None else target.ceilings, () if target is None else target.memory)


def print_report(trace: Trace, console: Console) -> None:
    """Prints what ran, operator by operator, and what is not recorded."""
    reasons = trace.metadata.get("dropped_reasons", {})
    lost = [f"{count:,} kernels ran and are not recorded: {reason}" for reason, count in reasons.items() if count]
    target = trace.metadata.get("target") or {}
    unknown = (
        report.UNKNOWN if recorded_target(trace.metadata) else report.untold(str(target.get("name") or "its device"))
    )
    rows = operator_rows(trace)
    if not rows and trace.metadata.get("mode") == "summary":
        lost.append('mode="summary" keeps sums alone: profile.summary(path) writes them')
    console.print(report.table_of(rows, lost, unknown))
