"""Chrome traces of other tools: torch.profiler's (Kineto), and any whose slices say what they are.

Kineto's categories become kinds, as `kineto.py` says. A slice of a category that nobody knows is a region; one without
a category that tells its FLOPs is a kernel. Events whose begin and end stand apart (phases `B` and `E`, `b` and `e`)
are joined (`pairs.py`); those of no pair are counted by reason in `metadata["unmatched"]`, and events of
phases that are not read in `metadata["unread_phases"]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import polars
from polars import col

from tessera.profiling.export.chrome_facts import COUNTERS, FACTS
from tessera.profiling.readers import kineto
from tessera.profiling.readers.json_events import EventFile, nanoseconds
from tessera.profiling.readers.pairs import Pairs
from tessera.profiling.readers.series import with_values
from tessera.profiling.readers.spool import Spool
from tessera.profiling.trace.table import COLUMNS, KINDS, Trace

_READ: Final = ("X", "i", "I", "n", "C")
"""Phases that become rows."""

_SILENT: Final = ("M", "s", "t", "f")
"""Phases that tell of others: names, and arrows, which `correlation` stands for."""

_EVENT: Final[dict[str, Any]] = {
    **dict.fromkeys(("name", "ph", "cat", "pid", "tid", "id", "scope"), polars.String()),
    **dict.fromkeys(("ts", "dur"), polars.Float64()),
}
_OF_ANY: Final[dict[str, Any]] = {
    **{name: polars.String() if COLUMNS[name] == polars.Categorical() else polars.Float64() for name in FACTS},
    **dict.fromkeys(("overlap_pct", *COUNTERS), polars.Float64()),
}
"""Arguments that are called as the columns of a trace, as the specification writes them."""


def schema(others: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of events, with their types; `others` stands before the events in the file."""
    told = {"name": polars.String(), "correlation": polars.Float64(), **kineto.ARGUMENTS}
    return {**_EVENT, "args": polars.Struct(told if kineto.wrote(others) else {**_OF_ANY, **told})}


def trace(file: EventFile, first: polars.DataFrame | None, others: Iterator[polars.DataFrame]) -> Trace:
    """The trace in a file whose first events were read."""
    spool, names = Spool(), dict[str, str]()
    unread: Counter[str] = Counter()
    pairs = Pairs()
    for read in chain([first], others) if first is not None else ():
        names |= _thread_names(read)
        table = pairs.joined(read)
        phases = table.filter(~col("ph").is_in((*_READ, *_SILENT)))["ph"].value_counts()
        unread.update(dict(phases.iter_rows()))
        spool.add(_rows(table))
    pairs.close()
    metadata = kineto.metadata(file.others)
    metadata["thread_names"] = names
    if unread:
        metadata["unread_phases"] = dict(unread)
    if pairs.unmatched:
        metadata["unmatched"] = dict(pairs.unmatched)
    ((rank, about),) = metadata["ranks"].items()
    placed = polars.lit(int(rank), COLUMNS["rank"]).alias("rank")
    made = spool.trace(metadata, {}, lambda events: events.with_columns(placed), from_first=True)
    if isinstance(base := file.others.get("baseTimeNanoseconds"), int):
        about["start_unix_ns"] = base + made.metadata["zero_ns"]  # without it ranks cannot be aligned
    return made


def _rows(table: polars.DataFrame) -> polars.DataFrame:
    """Events as columns of a trace."""
    kept = col("ph").is_in(_READ) & ~col("cat").fill_null("").is_in(kineto.IGNORED)
    events = table.filter(kept).unnest("args", separator=".")
    told = {name.removeprefix("args.") for name in events.columns if name.startswith("args.")}
    found: dict[str, polars.Expr] = {name: col(f"args.{name}") for name in (*FACTS, *COUNTERS) if name in told}
    for name, expression in kineto.columns().items():
        found[name] = polars.coalesce(found[name], expression) if name in found else expression
    kind = _kind(by_kineto="flops" not in told)
    collective = kind == "collective"
    if "bytes" in found:
        found["collective_bytes"] = polars.when(collective).then(
            polars.coalesce("args.bytes", found["collective_bytes"])
        )
        found["bytes"] = polars.when(~collective).then("args.bytes")
    if "overlap_pct" in told:
        found["collective_overlap_pct"] = polars.coalesce("args.overlap_pct", "args.collective_overlap_pct")
    found |= {
        "kind": kind,
        "kernel_name": col("name"),
        "start_ns": nanoseconds("ts"),
        "dur_ns": polars.when(col("ph") == "X").then(nanoseconds("dur").fill_null(0)).otherwise(0),
        # The specification's own example names a collective by its slice.
        "collective_type": polars.when(collective).then(polars.coalesce(found["collective_type"], "name")),
        "correlation": col("args.correlation").cast(polars.Int64, strict=False),
        "pid": _numbers("pid").cast(polars.Int32, strict=False),
        "thread_id": _numbers("tid"),
    }
    return with_values(events.select("series", **found))


def _kind(by_kineto: bool) -> polars.Expr:
    return (
        polars.when(col("ph") == "C")
        .then(polars.when(col("cat") == "sample").then(polars.lit("sample")).otherwise(polars.lit("counter")))
        .when(col("ph") != "X")
        .then(polars.when(kineto.is_memory()).then(polars.lit("sample")).otherwise(polars.lit("mark")))
        .when(polars.lit(False) if by_kineto else col("cat").is_null() & col("args.flops").is_not_null())
        .then(polars.lit("kernel"))
        .when(kineto.is_collective())
        .then(polars.lit("collective"))
        .when(col("cat").is_in(KINDS))
        .then("cat")
        .otherwise(col("cat").replace_strict(kineto.KINDS, default="region", return_dtype=polars.String))
    )


def _numbers(name: str) -> polars.Expr:
    """Numbers of processes and threads; a name, which some files have instead, becomes a number of its own."""
    made = (col(name).hash() % (1 << 31)).cast(polars.Int64)
    return polars.coalesce(col(name).cast(polars.Int64, strict=False), polars.when(col(name).is_not_null()).then(made))


def _thread_names(table: polars.DataFrame) -> dict[str, str]:
    named = table.filter((col("ph") == "M") & (col("name") == "thread_name"))
    told = zip(named.select(_numbers("tid"))["tid"], named["args"].struct.field("name"), strict=True)
    return {str(thread): name for thread, name in told if thread is not None and name is not None}
