"""Traces as Parquet files: what analyses read fastest, and a hundredth of Chrome's JSON.

A file holds those of `table.COLUMNS` that have values; its metadata hold `tessera` (JSON: format number, metadata,
capability). Times stand in it as they are, so that any reader of Parquet understands it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import polars
from polars.exceptions import PolarsError

from tessera.errors import ProfileError
from tessera.profiling.export.contract import Format
from tessera.profiling.export.output import exported
from tessera.profiling.trace.schema import FORMAT_VERSION
from tessera.profiling.trace.table import COLUMNS, Trace

KEY: Final = "tessera"
_LEVEL: Final = 1
_ROWS: Final = 1 << 16
"""Rows of a row group: what a streaming reader holds at once."""


ALWAYS: Final = ("kind", "start_ns", "dur_ns")
"""Columns that every file has."""

TEXTS: Final = tuple(name for name, kind in COLUMNS.items() if kind == polars.Categorical)


@dataclass(frozen=True, slots=True)
class ParquetExporter:
    """Writes Parquet files."""

    path: Path
    needs_kernels: ClassVar[bool] = True

    def export(self, trace: Trace) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return write(trace, self.path)


def write(trace: Trace, path: Path) -> Path:
    """Writes a trace of any source and gives the file's path. Raises ProfileError when it cannot be written."""
    about = {"format": FORMAT_VERSION, "metadata": trace.metadata, "capability": trace.capability}
    with exported(path, "trace") as file:
        try:
            trace.events.select(_held(trace)).sink_parquet(
                file,
                compression="zstd",
                compression_level=_LEVEL,
                statistics=True,  # events come by start: who asks for a window reads the row groups of that time alone
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
    codes = {name: polars.col(name).to_physical() for name in TEXTS}
    asked = {
        "nulls": polars.struct(polars.all().null_count()),
        "least": polars.struct(code.min() for code in codes.values()),
        "most": polars.struct(code.max() for code in codes.values()),
        "first": polars.struct(polars.col(name).first() for name in codes),
    }
    told = trace.events.select(polars.len().alias("rows"), *(each.alias(name) for name, each in asked.items()))
    found = told.collect(engine="streaming").row(0, named=True)
    held = [name for name in COLUMNS if name in ALWAYS or found["nulls"][name] < found["rows"]]
    same = {
        name: found["first"][name]
        for name in TEXTS
        if found["nulls"][name] == 0 and found["rows"] and found["least"][name] == found["most"][name]
    }
    return [
        polars.lit(same[name], polars.Enum([same[name]])).alias(name) if name in same else polars.col(name)
        for name in held
    ]


FORMAT: Final = Format(lambda path: ParquetExporter(Path(path)), (".parquet",))
