"""Events that Python code notes while sessions are on: copies, collectives, operators of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class RecordedEvent(NamedTuple):
    """An event that a thread has made: its kind and name (`table.COLUMNS`), its times in nanoseconds of
    `time.monotonic_ns`, and further columns.
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    thread: int
    columns: Mapping[str, Any]
