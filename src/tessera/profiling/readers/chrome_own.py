"""Tessera's own Chrome traces, as `profiling/export/formats/chrome.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import polars
from polars import col

from tessera.errors import ProfileError
from tessera.profiling.export.chrome_facts import ARGUMENTS, FACTS, OPENING
from tessera.profiling.readers.json_events import EventFile, nanoseconds
from tessera.profiling.readers.series import with_values
from tessera.profiling.readers.spool import Spool
from tessera.profiling.trace.table import COLUMNS, Trace

_TEXTS: Final = ("name", "ph", "cat", "throttle_reason", "stack")
_NUMBERS: Final = ("ts", "dur", "pid", "tid")
_ABOUT_FILE: Final = ("unavailable", "percentages", "largest_edge_shift_us")
_BOTH: Final = ("kernel_name", "throttle_reason", "stack")
"""Columns that an event may have of its own, although they are facts."""

_TRACK: Final = {
    **dict.fromkeys(("process", "track"), polars.Int64()),
    **{name: COLUMNS[name] for name in ("rank", "pid", "device", "thread_id", "stream_id", "stream_name")},
}
_LONGEST_OPENING: Final = 4096


def arguments(opening: bytes) -> list[str] | None:
    """The columns that slices have of their own, by a file's first event; None where Tessera did not write it."""
    begin = opening[:_LONGEST_OPENING].decode("utf-8", "replace").lstrip()
    try:
        event, _ = json.JSONDecoder().raw_decode(begin)
        own = event["args"]["own"] if event["name"] == OPENING else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return [name for name in own if name in COLUMNS] if isinstance(own, list) else None


def schema(own: Sequence[str]) -> dict[str, Any]:
    """The keys of events, with their types."""
    told = polars.Struct(dict.fromkeys(("k", *(ARGUMENTS.get(name, name) for name in own)), polars.Float64()))
    return {**dict.fromkeys(_TEXTS, polars.String()), **dict.fromkeys(_NUMBERS, polars.Float64()), "args": told}


def trace(file: EventFile, first: polars.DataFrame | None, others: Iterator[polars.DataFrame]) -> Trace:
    """The trace in a file whose first events were read. Raises ProfileError where what follows them is damaged."""
    spool = Spool()
    names = {argument: name for name, argument in ARGUMENTS.items()}
    own = [names.get(field.name, field.name) for field in file.schema["args"].fields if field.name != "k"]
    for table in chain([first], others) if first is not None else ():
        spool.add(_rows(table, own))
    try:
        kernels = _table(
            file.others["tesseraKernels"], {"k": polars.UInt32(), **{name: COLUMNS[name] for name in FACTS}}
        )
        tracks = _table(file.others["tesseraTracks"], _TRACK)
        metadata = {"source": "tessera", **file.others["otherData"], "plans": file.others["tesseraPlans"]}
        unavailable = {name: str(why) for name, why in metadata["unavailable"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, polars.exceptions.PolarsError) as error:
        raise ProfileError(f"{file.path} is damaged: {type(error).__name__} {error}") from error
    about = {name: value for name, value in metadata.items() if name not in _ABOUT_FILE}
    return spool.trace(about, unavailable, lambda events: _joined(events, kernels, tracks))


def _table(columns: Mapping[str, Any], types: Mapping[str, Any]) -> polars.DataFrame:
    """A table of what the file has of these columns; the others are null."""
    return polars.DataFrame(
        {name: polars.Series(name, columns.get(name), kind) for name, kind in types.items() if name in columns}
    ).with_columns(polars.lit(None, kind).alias(name) for name, kind in types.items() if name not in columns)


def _rows(table: polars.DataFrame, own: Sequence[str]) -> polars.DataFrame:
    """Events as columns of a trace, beside `k`, and `process` and `track` as the file numbers them."""
    told = {name: col("args").struct.field(ARGUMENTS.get(name, name)) for name in own}
    rows = table.filter(col("ph").is_in(("X", "i", "C"))).select(
        "series",
        "throttle_reason",
        "stack",
        kind=col("cat").cast(COLUMNS["kind"], strict=False),
        kernel_name=col("name").cast(COLUMNS["kernel_name"]),
        start_ns=nanoseconds("ts"),
        dur_ns=nanoseconds("dur").fill_null(0),
        k=col("args").struct.field("k").cast(polars.UInt32, strict=False),
        process=col("pid").cast(polars.Int64, strict=False),
        track=col("tid").cast(polars.Int64, strict=False),
        **told,
    )
    return with_values(rows)


def _joined(events: polars.LazyFrame, kernels: polars.DataFrame, tracks: polars.DataFrame) -> polars.LazyFrame:
    """Events with what is the same for all of a kernel, and with their places."""
    known = kernels.rename({name: f"{name}_of_k" for name in _BOTH})
    return (
        events.join(known.lazy(), on="k", how="left", maintain_order="left")
        .join(tracks.lazy(), on=["process", "track"], how="left", maintain_order="left")
        .with_columns(polars.coalesce(f"{name}_of_k", name).cast(COLUMNS[name]).alias(name) for name in _BOTH)
    )
