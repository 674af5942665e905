"""Chrome traces (JSON, also packed with gzip): Tessera's own, those of torch.profiler, and others."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, Final

from tessera.profiling.readers import chrome_others, chrome_own
from tessera.profiling.readers.json_events import EventFile
from tessera.profiling.trace.table import Trace

_LOOKED_AT: Final = 1 << 16


def matches(path: Path) -> bool:
    """Whether it begins as an object with `traceEvents`, or as an array of events with phases."""
    try:
        with path.open("rb") as file:
            begin = file.read(_LOOKED_AT)
        if begin.startswith(b"\x1f\x8b"):
            with gzip.open(path) as unpacked:
                begin = unpacked.read(_LOOKED_AT)
    except (OSError, EOFError, zlib.error):
        return False
    begin = begin.lstrip()
    return (begin[:1] == b"{" and b'"traceEvents"' in begin) or (begin[:1] == b"[" and b'"ph"' in begin)


def read(path: Path) -> Trace:
    """The trace, in memory up to `spool.ROWS_IN_MEMORY` events and in temporary files beyond. Raises ProfileError, with
    the place, for a file that is cut off or damaged.
    """
    own: list[str] | None = None

    def schema(file: EventFile) -> dict[str, Any]:
        nonlocal own
        own = chrome_own.arguments(file.opening)
        return chrome_others.schema(file.others) if own is None else chrome_own.schema(own)

    file = EventFile(path, schema)
    tables = file.tables()
    first = next(tables, None)  # asks for the schema, and so tells the source
    return chrome_others.trace(file, first, tables) if own is None else chrome_own.trace(file, first, tables)
