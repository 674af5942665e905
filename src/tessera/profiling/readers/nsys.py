"""Databases that Nsight Systems exports (`nsys export --type sqlite`): kernels, copies, calls of the CUDA API, and NVTX
ranges.

Source of the tables: "SQLite Export Schema Reference", Nsight Systems documentation (2021.5 to 2025). Tables exist only
where there was something to put into them, and columns came over time, so each is asked for.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import polars
from polars.exceptions import PolarsError

from tessera.errors import ProfileError
from tessera.profiling.readers import nccl
from tessera.profiling.readers.spool import Spool
from tessera.profiling.trace.table import COLUMNS, Trace

_MAGIC: Final = b"SQLite format 3\x00"
_ROWS: Final = 1 << 17
_PUSH_POP, _START_END = 59, 60
_COPY_KINDS: Final = {1: "h2d", 2: "d2h", 8: "d2d", 9: "h2h", 10: "d2d"}
"""`CUpti_ActivityMemcpyKind` of CUPTI; 10 is from one device to another."""

_PID: Final = "/ 16777216 % 16777216"
_TID: Final = "% 16777216"
"""How the documentation takes process and thread out of `globalPid` and `globalTid`."""

_DEVICE: Final = {
    "device": "'cuda:' || deviceId",
    "stream_id": "streamId",
    "correlation": "correlationId",
    "pid": f"globalPid {_PID}",
}
_HOST: Final = {"thread_id": f"globalTid {_TID}", "pid": f"globalTid {_PID}", "device": "'cpu'"}
_STRING: Final = "(SELECT value FROM StringIds WHERE id = {})"

_NAMES: Final = {
    *("StringIds", "deviceId", "streamId", "correlationId", "globalPid", "globalTid", "demangledName", "shortName"),
    *("nameId", "text", "textId", "bytes", "copyKind"),
}
"""Of columns and tables that may be missing."""

_WORD: Final = re.compile(r"[A-Za-z]\w*")
_QUOTED: Final = re.compile("'[^']*'")
_TEXTS: Final = (polars.Categorical(), COLUMNS["kind"])

TABLES: Final[dict[str, dict[str, str | tuple[str, ...]]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "kind": "'kernel'",
        "kernel_name": (_STRING.format("demangledName"), _STRING.format("shortName")),
        **_DEVICE,
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        "kind": "'memcpy'",
        "kernel_name": "'memcpy'",
        "memcpy_dir": "CASE copyKind " + " ".join(f"WHEN {k} THEN '{v}'" for k, v in _COPY_KINDS.items()) + " END",
        "bytes": "bytes",
        "memcpy_gbps": "CASE WHEN end > start THEN 1.0 * bytes / (end - start) END",
        **_DEVICE,
    },
    "CUPTI_ACTIVITY_KIND_MEMSET": {
        "kind": "'memcpy'",
        "kernel_name": "'memset'",
        "bytes": "bytes",
        **_DEVICE,
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "kind": "'operator'",
        "kernel_name": _STRING.format("nameId"),
        "correlation": "correlationId",
        **_HOST,
    },
    "NVTX_EVENTS": {
        "kind": "'region'",
        "kernel_name": (f"coalesce(text, {_STRING.format('textId')})", "text"),
        **_HOST,
    },
}
"""What each table becomes: columns of a trace as SQL, or several, of which the first is taken that the table has the
columns for. Where it has them for none, the column is null.
"""


def matches(path: Path) -> bool:
    """Whether it is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path) -> Trace:
    """The trace. Raises ProfileError for a database that is damaged or that Nsight Systems did not write."""
    spool = Spool()
    try:
        # Immutable: no lock and no journal are looked for, which a folder may refuse.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables.isdisjoint(TABLES):
                raise ProfileError(
                    f"{path} is no database of Nsight Systems", hints=[f"such a one has one of {', '.join(TABLES)}"]
                )
            for name in TABLES.keys() & tables:
                for events in _events(database, name, tables):
                    spool.add(_collectives(events))
            start = _session_start(database, tables)
    # A value of another type than its column's is polars' error, or int's; a damaged schema is one of Unicode.
    except (sqlite3.Error, PolarsError, ValueError, OverflowError) as error:
        raise ProfileError(f"{path} cannot be read as a database of Nsight Systems: {error}") from error
    rank: dict[str, Any] = {}
    made = spool.trace({"source": "nsys", "ranks": {"0": rank}}, {}, from_first=True)
    if start is not None:
        rank["start_unix_ns"] = start + made.metadata["zero_ns"]
    return made


def _events(database: sqlite3.Connection, table: str, tables: set[str]) -> Iterator[polars.DataFrame]:
    held = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
    columns = {name: _possible(sql, held | tables) for name, sql in TABLES[table].items()}
    columns |= {"start_ns": "start", "dur_ns": "end - start"}
    asked = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    ranges = f" AND eventType IN ({_PUSH_POP}, {_START_END})" if table == "NVTX_EVENTS" and "eventType" in held else ""
    rows = database.execute(f"SELECT {asked} FROM {table} WHERE end >= start{ranges}")
    types = {name: polars.String() if COLUMNS[name] in _TEXTS else COLUMNS[name] for name in columns}
    while batch := rows.fetchmany(_ROWS):
        yield polars.DataFrame(batch, types, orient="row", strict=False)


def _possible(sql: str | tuple[str, ...], held: set[str]) -> str:
    """The first of some expressions that needs only what is there."""
    given = (sql,) if isinstance(sql, str) else sql
    needed = ({word for word in _WORD.findall(_QUOTED.sub("", each)) if word in _NAMES} for each in given)
    return next((each for each, names in zip(given, needed, strict=True) if names <= held), "NULL")


def _collectives(events: polars.DataFrame) -> polars.DataFrame:
    """Tells NCCL's kernels from others."""
    name = polars.col("kernel_name")
    collective = (polars.col("kind") == "kernel") & nccl.is_collective(name)
    return events.with_columns(
        kind=polars.when(collective).then(polars.lit("collective")).otherwise("kind"),
        collective_type=polars.when(collective).then(nccl.collective_type(name)),
        collective_algorithm=polars.when(collective).then(nccl.algorithm(name)),
    )


def _session_start(database: sqlite3.Connection, tables: set[str]) -> int | None:
    """The zero of the timestamps, in nanoseconds since 1970, where the version writes it."""
    if "TARGET_INFO_SESSION_START_TIME" not in tables:
        return None
    found = database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return None if found is None or found[0] is None else int(found[0])
