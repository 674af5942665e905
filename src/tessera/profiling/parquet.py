"""Traces as Parquet files: what analyses read fastest, and a hundredth of Chrome's JSON.

A file holds `table.COLUMNS`; its metadata hold `tessera` (JSON: format number, metadata,
capability). Times stand in it as they are, so that any reader of Parquet understands it.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars
from polars.exceptions import PolarsError

from tessera.errors import ProfileError
from tessera.profiling.schema import FORMAT_VERSION
from tessera.profiling.sessions import Session
from tessera.profiling.table import COLUMNS, Trace, complete

KEY: Final = "tessera"
_LEVEL: Final = 1
_ROWS: Final = 1 << 16
"""Rows of a row group: what a streaming reader holds at once."""


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            trace.events.sink_parquet(
                temporary,
                compression="zstd",
                compression_level=_LEVEL,
                row_group_size=_ROWS,
                metadata={KEY: json.dumps(about)},
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ProfileError(f"the trace could not be written to {path}: {error.strerror or error}") from error
    return path


def read(path: Path) -> Trace:
    """The trace in a file that `write` wrote; events are read when they are needed. Raises ProfileError for a file that
    is none, or is damaged, or has a newer format.
    """
    try:
        told = polars.read_parquet_metadata(path).get(KEY)
        scanned = polars.scan_parquet(path)
        held = scanned.collect_schema().names()
    except (OSError, PolarsError) as error:
        raise ProfileError(f"{path} is no whole Parquet file: {str(error).splitlines()[0]}") from error
    if told is None:
        raise ProfileError(
            f"{path} is a Parquet file, but no trace of Tessera's", hints=["profile.parquet(path) writes traces"]
        )
    about = json.loads(told)
    if about["format"] > FORMAT_VERSION:
        raise ProfileError(
            f"{path} has format {about['format']}, and this version reads up to {FORMAT_VERSION}",
            hints=["read it with the version of Tessera that wrote it, or a newer one"],
        )
    known = [name for name in held if name in COLUMNS]
    events = scanned.select([polars.col(name).cast(COLUMNS[name]) for name in known])
    return Trace(complete(events, known), about["metadata"], about["capability"])
