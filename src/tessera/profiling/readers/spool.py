"""Collecting the pieces of a trace: in memory while they are few, in files of a temporary folder beyond that."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars
from polars import col

from tessera.profiling.trace.schema import FORMAT_VERSION
from tessera.profiling.trace.table import COLUMNS, Trace, complete, frame

ROWS_IN_MEMORY: Final = 2_000_000
"""Some hundred megabytes."""


class Spool:
    """Takes tables with columns of a trace, and others that tell of them, and makes one trace of all."""

    def __init__(self, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        self._rows_in_memory = rows_in_memory
        self._held: list[polars.DataFrame] = []
        self._empty = frame({})
        self._rows = 0
        self._folder: Path | None = None
        self._files = 0
        self._first: int | None = None
        self._last = -(1 << 63)
        self._in_order = True

    def add(self, events: polars.DataFrame) -> None:
        """Adds events, which have `start_ns` at least; what is missing is null."""
        typed = [col(name).cast(COLUMNS[name], strict=False) for name in events.columns if name in COLUMNS]
        events = events.with_columns(typed).drop_nulls("start_ns")
        if events.is_empty():
            self._empty = events
            return
        self._held.append(events)
        self._rows += len(events)
        first = int(events["start_ns"].min())  # type: ignore[arg-type]  # a column of integers without nulls
        self._in_order &= self._last <= first and events["start_ns"].is_sorted()
        self._last = int(events["start_ns"].max())  # type: ignore[arg-type]
        self._first = first if self._first is None else min(first, self._first)
        if self._rows > self._rows_in_memory:
            self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(dir=_folder().name))
        polars.concat(self._held, how="diagonal").write_parquet(self._folder / f"{self._files:06}.parquet")
        self._held, self._rows = [], 0
        self._files += 1

    def trace(
        self,
        metadata: dict[str, Any],
        capability: dict[str, str],
        finish: Callable[[polars.LazyFrame], polars.LazyFrame] = lambda events: events,
        *,
        from_first: bool = False,
    ) -> Trace:
        """All events by start, after `finish` has made of them what it wants to.

        `from_first` puts the first one at zero; `metadata["zero_ns"]` says when that was on the source's clock.
        """
        about = {"format": FORMAT_VERSION, **metadata}
        events = finish(self._all())
        if from_first:
            events = events.with_columns(col("start_ns") - (self._first or 0))
            about["zero_ns"] = self._first or 0
        if not self._in_order:
            events = events.sort("start_ns", maintain_order=True)
        known = [name for name in events.collect_schema().names() if name in COLUMNS]
        if self._folder is None:
            made = events.select(known).collect()
            known = [name for name in known if made[name].null_count() < len(made)]
            events = made.lazy()
        absent = {name: f"{metadata['source']} does not tell it" for name in COLUMNS if name not in known}
        return Trace(
            complete(events, known), about, absent | {name: capability[name] for name in absent & capability.keys()}
        )

    def _all(self) -> polars.LazyFrame:
        if self._folder is None:
            return polars.concat(self._held or [self._empty], how="diagonal").lazy()
        if self._held:
            self._spill()
        return polars.scan_parquet(self._folder, missing_columns="insert")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where this process keeps pieces; gone when it ends."""
    return tempfile.TemporaryDirectory(prefix="tessera-trace-")
