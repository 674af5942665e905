"""CSV files of rocprofv3: kernel traces, copies of memory, and counters.

Source of the columns: "Using rocprofv3", ROCprofiler-SDK documentation, sections on kernel trace, memory copy trace and
counter collection (ROCm 6.2 to 7). Columns came and went between versions: only those that are needed must be there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import polars
from polars import col

from tessera.errors import ProfileError
from tessera.profiling.readers.spool import Spool
from tessera.profiling.trace.table import COLUMNS, Trace

_NEEDED: Final = {
    "kernels": ("Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"),
    "copies": ("Kind", "Direction", "Start_Timestamp", "End_Timestamp"),
    "counters": ("Kernel_Name", "Counter_Name", "Counter_Value"),
}
"""By what a file holds: the columns by which it is known."""

_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "h2d",
    "DEVICE_TO_HOST": "d2h",
    "DEVICE_TO_DEVICE": "d2d",
    "HOST_TO_HOST": "h2h",
}

_HEADER: Final = 4096
_ROWS: Final = 1 << 18
_KIB: Final = 1024.0
COUNTERS: Final[dict[str, tuple[str, float]]] = {
    "OccupancyPercent": ("sm_occupancy", 0.01),
    "MemUnitStalled": ("mem_stall_pct", 1.0),
    "VALUBusy": ("alu_util_pct", 1.0),
    "MfmaUtil": ("tc_util_pct", 1.0),
    "L2CacheHit": ("l2_hit_rate", 0.01),
    "FetchSize": ("dram_read_gbps", _KIB),
    "FETCH_SIZE": ("dram_read_gbps", _KIB),
    "WriteSize": ("dram_write_gbps", _KIB),
    "WRITE_SIZE": ("dram_write_gbps", _KIB),
}
"""Derived counters of AMD's documentation: the column that each becomes, and its factor. Kibibytes become a rate."""


def matches(path: Path) -> bool:
    """Whether its first line is that of a file of rocprofv3."""
    with path.open("rb") as file:
        return _holds(file.readline(_HEADER).decode("utf-8", "replace")) is not None


def read(path: Path) -> Trace:
    """The trace. Raises ProfileError for a file that is damaged, with the line where that is known."""
    spool, unread = Spool(), list[str]()
    try:
        with path.open("rb") as file:
            holds = _holds(file.readline(_HEADER).decode("utf-8", "replace"))
        table = polars.scan_csv(path, infer_schema=False, raise_if_empty=False)
        columns = table.collect_schema().names()
        if holds == "counters":
            named = table.select(col("Counter_Name").unique()).collect(engine="streaming")["Counter_Name"]
            unread = sorted(set(named.drop_nulls()) - COUNTERS.keys())
        for events in _EVENTS[holds or "kernels"](table, columns).collect_batches(chunk_size=_ROWS):
            bad = events["start_ns"].is_null() | (events["dur_ns"].fill_null(-1) < 0)
            if bad.any():
                raise ProfileError(f"{path} is damaged: line {events['line'][bad.arg_max() or 0]} has no start and end")
            spool.add(events)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise ProfileError(f"{path} cannot be read as a file of rocprofv3: {str(error).splitlines()[0]}") from error
    about: dict[str, Any] = {"source": "rocprof", "ranks": {"0": {}}}
    return spool.trace(about | ({"unread_counters": unread} if unread else {}), {}, from_first=True)


def _holds(header: str) -> str | None:
    names = {name.strip().strip('"') for name in header.split(",")}
    return next((kind for kind, needed in _NEEDED.items() if names.issuperset(needed)), None)


def _number(name: str, columns: list[str]) -> polars.Expr:
    """A column of numbers that some versions do not write."""
    return col(name).cast(polars.Int64, strict=False) if name in columns else polars.lit(None, polars.Int64)


def _common(columns: list[str]) -> dict[str, polars.Expr]:
    start, end = _number("Start_Timestamp", columns), _number("End_Timestamp", columns)
    agent = col("Agent_Id").str.extract(r"(\d+)") if "Agent_Id" in columns else polars.lit("0")
    stream = "Stream_Id" if "Stream_Id" in columns else "Queue_Id"
    return {
        "line": polars.int_range(2, polars.len() + 2),
        "start_ns": start,
        "dur_ns": end - start,
        "pid": _number("Process_Id", columns),
        "stream_id": (_number(stream, columns) % (1 << 31)).cast(COLUMNS["stream_id"]),  # addresses, in old versions
        "device": polars.concat_str(polars.lit("rocm:"), agent),
        "correlation": _number("Correlation_Id", columns),
    }


def _kernels(table: polars.LazyFrame, columns: list[str]) -> polars.LazyFrame:
    return table.select(kind=polars.lit("kernel"), kernel_name="Kernel_Name", **_common(columns))


def _copies(table: polars.LazyFrame, columns: list[str]) -> polars.LazyFrame:
    direction = col("Direction").str.extract("((?:HOST|DEVICE)_TO_(?:HOST|DEVICE))")
    made = direction.replace_strict(_DIRECTIONS, default=col("Direction"), return_dtype=polars.String)
    return table.select(kind=polars.lit("memcpy"), kernel_name="Direction", memcpy_dir=made, **_common(columns))


def _counters(table: polars.LazyFrame, columns: list[str]) -> polars.LazyFrame:
    """A row for each kernel that ran: the file has one for each of its counters."""
    common = _common(columns)
    rows = table.select(
        kernel_name="Kernel_Name",
        counter="Counter_Name",
        number=col("Counter_Value").cast(polars.Float64),
        dispatch=_number("Dispatch_Id", columns),
        **common,
    )
    found: dict[str, list[polars.Expr]] = {}
    for name, (column, factor) in COUNTERS.items():
        value = factor * col("number").filter(col("counter") == name).first()
        # Bytes a nanosecond are gigabytes a second.
        found.setdefault(column, []).append(value / col("dur_ns").first() if column.endswith("_gbps") else value)
    keys = ["dispatch", "kernel_name", *(name for name in common if name not in ("line", "dur_ns"))]
    values = {column: polars.coalesce(values) for column, values in found.items()}
    grouped = rows.group_by(keys, maintain_order=True).agg(col("line", "dur_ns").first(), **values)
    return grouped.with_columns(kind=polars.lit("kernel"))


_EVENTS: Final = {"kernels": _kernels, "copies": _copies, "counters": _counters}
