"""Tessera's own Parquet files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars
from polars.exceptions import PolarsError

from tessera.errors import ProfileError
from tessera.profiling.export.formats.parquet import ALWAYS, KEY, TEXTS
from tessera.profiling.trace.schema import FORMAT_VERSION, is_sound
from tessera.profiling.trace.table import COLUMNS, Trace, complete

_MAGIC = b"PAR1"


def matches(path: Path) -> bool:
    """Whether it is a Parquet file."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path) -> Trace:
    """The trace in it; events are read when they are needed. Raises ProfileError for a file that
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
    if not held.keys() >= set(ALWAYS) or any(not _fits(held[name], COLUMNS[name]) for name in known):
        raise ProfileError(f"{path} is damaged: its columns are not those of a trace")
    events = scanned.select([_read_column(name, held[name]) for name in known])
    return Trace(complete(events, known), metadata, capability)


def _read_column(name: str, held: Any) -> polars.Expr:
    """A column of a file as the column of a trace."""
    if isinstance(held, polars.Enum) and name in TEXTS and len(held.categories) == 1:  # casting takes much longer
        return (
            polars.when(polars.col(name).is_not_null()).then(polars.lit(held.categories[0], COLUMNS[name])).alias(name)
        )
    return polars.col(name).cast(COLUMNS[name])


def _about(told: str, path: Path) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The format, metadata and capability that a file tells. Raises ProfileError where it tells something else."""
    try:
        about = json.loads(told)
        version, metadata, capability = (about[name] for name in ("format", "metadata", "capability"))
        whole = isinstance(version, int) and isinstance(metadata, dict) and is_sound(metadata)
        whole = whole and isinstance(capability, dict)
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
