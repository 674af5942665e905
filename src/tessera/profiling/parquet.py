"""Traces as Parquet files: what analyses read fastest, and a hundredth of Chrome's JSON.

A file holds those of `table.COLUMNS` that have values; its metadata hold `tessera` (JSON: format number, metadata,
capability). Times stand in it as they are, so that any reader of Parquet understands it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars
from polars.exceptions import PolarsError

from tessera.errors import ProfileError
from tessera.profiling.output import exported
from tessera.profiling.schema import FORMAT_VERSION
from tessera.profiling.sessions import Session
from tessera.profiling.table import COLUMNS, Trace, complete

KEY: Final = "tessera"
_LEVEL: Final = 1
_ROWS: Final = 1 << 16
"""Rows of a row group: what a streaming reader holds at once."""


_ALWAYS: Final = ("kind", "start_ns", "dur_ns")


@dataclass(frozen=True, slots=True)
class ParquetExporter:
    """Writes a session as Parquet."""

    path: Path

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return write(session.trace(), self.path)


def write(trace: Trace, path: Path) -> Path:
    """Writes a trace of any source and gives the file's path. Raises ProfileError when it cannot be written."""
    about = {"format": FORMAT_VERSION, "metadata": trace.metadata, "capability": trace.capability}
    with exported(path, "trace") as file:
        try:
            trace.events.select(_held(trace)).sink_parquet(
                file,
                compression="zstd",
                compression_level=_LEVEL,
                statistics=False,  # every row group has all kinds and names: nothing could be left out by them
                row_group_size=_ROWS,
                metadata={KEY: json.dumps(about)},
            )
        except PolarsError as error:  # as which the file's own errors arrive, a full disk for one
            raise ProfileError(f"the trace could not be written to {path}: {error}") from error
    return path


def _held(trace: Trace) -> list[str]:
    """Columns that have values: each of the others would double the time per event in small steps."""
    counts = trace.events.select(polars.all().null_count(), polars.len().alias("")).collect(engine="streaming")
    found = counts.row(0, named=True)
    return [name for name in COLUMNS if name in _ALWAYS or found[name] < found[""]]


def read(path: Path) -> Trace:
    """The trace in a file that `write` wrote; events are read when they are needed. Raises ProfileError for a file that
    is none, or is damaged, or has a newer format.
    """
    try:
        told = polars.read_parquet_metadata(path).get(KEY)
        scanned = polars.scan_parquet(path)
        held = scanned.collect_schema()
    except (OSError, PolarsError) as error:
        raise ProfileError(f"{path} is no whole Parquet file: {str(error).splitlines()[0]}") from error
    if told is None:
        raise ProfileError(
            f"{path} is a Parquet file, but no trace of Tessera's", hints=["profile.parquet(path) writes traces"]
        )
    version, metadata, capability = _about(told, path)
    if version > FORMAT_VERSION:
        raise ProfileError(
            f"{path} has format {version}, and this version reads up to {FORMAT_VERSION}",
            hints=["read it with the version of Tessera that wrote it, or a newer one"],
        )
    known = [name for name in held if name in COLUMNS]
    if not held.keys() >= set(_ALWAYS) or any(not _fits(held[name], COLUMNS[name]) for name in known):
        raise ProfileError(f"{path} is damaged: its columns are not those of a trace")
    events = scanned.select([polars.col(name).cast(COLUMNS[name]) for name in known])
    return Trace(complete(events, known), metadata, capability)


def _about(told: str, path: Path) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The format, metadata and capability that a file tells. Raises ProfileError where it tells something else."""
    try:
        about = json.loads(told)
        version, metadata, capability = (about[name] for name in ("format", "metadata", "capability"))
        whole = isinstance(version, int) and isinstance(metadata, dict) and isinstance(capability, dict)
    except (ValueError, LookupError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise ProfileError(f"{path} is damaged: what it tells of its trace cannot be read")
    return version, metadata, capability


def _fits(held: Any, wanted: Any) -> bool:
    """Whether every value of one type is one of another: numbers stay numbers, and a text is no kind of event."""
    if isinstance(wanted, polars.Enum):
        return bool(held == wanted)
    return held.is_numeric() if wanted.is_numeric() else not held.is_numeric() and not held.is_nested()
