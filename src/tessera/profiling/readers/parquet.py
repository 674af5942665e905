"""Tessera's own Parquet files."""

from __future__ import annotations

from pathlib import Path

from tessera.profiling.export import parquet
from tessera.profiling.trace.table import Trace

_MAGIC = b"PAR1"


def matches(path: Path) -> bool:
    """Whether it is a Parquet file."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path) -> Trace:
    """The trace in it. Raises ProfileError for one that is damaged or not Tessera's."""
    return parquet.read(path)
