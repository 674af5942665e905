"""Traces as Parquet files: what analyses read fastest, and a hundredth of Chrome's JSON.

A file holds those of `table.COLUMNS` that have values; its metadata hold `tessera` (JSON: format number, metadata,
capability). Times stand in it as they are, so that any reader of Parquet understands it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars
from polars.exceptions import PolarsError

from tessera.errors import ProfileError
from tessera.profiling.output import exported
from tessera.profiling.schema import FORMAT_VERSION
from tessera.profiling.table import COLUMNS, Trace, complete

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session

KEY: Final = "tessera"
_LEVEL: Final = 1
_ROWS: Final = 1 << 16
"""Rows of a row group: what a streaming reader holds at once."""


_ALWAYS: Final = ("kind", "start_ns", "dur_ns")
_TEXTS: Final = tuple(name for name, kind in COLUMNS.items() if kind == polars.Categorical)


@dataclass(frozen=True, slots=True)
class ParquetExporter:
    """Writes a session as Parquet."""

    path: Path
    needs_kernels: ClassVar[bool] = True

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


def _held(trace: Trace) -> list[polars.Expr]:
    """Columns that have values: each of the others would double the time per event in small steps.

    A text that is the same in every row is written as an Enum of that one, in a quarter of the time: for every value of
    a Categorical, polars looks into a table of all texts.
    """
    codes = {name: polars.col(name).to_physical() for name in _TEXTS}
    asked = {
        "nulls": polars.struct(polars.all().null_count()),
        "least": polars.struct(code.min() for code in codes.values()),
        "most": polars.struct(code.max() for code in codes.values()),
        "first": polars.struct(polars.col(name).first() for name in codes),
    }
    told = trace.events.select(polars.len().alias("rows"), *(each.alias(name) for name, each in asked.items()))
    found = told.collect(engine="streaming").row(0, named=True)
    held = [name for name in COLUMNS if name in _ALWAYS or found["nulls"][name] < found["rows"]]
    same = {
        name: found["first"][name]
        for name in _TEXTS
        if found["nulls"][name] == 0 and found["rows"] and found["least"][name] == found["most"][name]
    }
    return [
        polars.lit(same[name], polars.Enum([same[name]])).alias(name) if name in same else polars.col(name)
        for name in held
    ]


def _read_column(name: str, held: Any) -> polars.Expr:
    """A column of a file as the column of a trace."""
    if isinstance(held, polars.Enum) and name in _TEXTS and len(held.categories) == 1:  # casting takes much longer
        return (
            polars.when(polars.col(name).is_not_null()).then(polars.lit(held.categories[0], COLUMNS[name])).alias(name)
        )
    return polars.col(name).cast(COLUMNS[name])


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
    events = scanned.select([_read_column(name, held[name]) for name in known])
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
