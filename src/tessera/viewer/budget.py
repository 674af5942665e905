"""How much memory answers may take: what an answer needs is estimated by its events before it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars
from polars import col

from tessera.errors import ProfileError
from tessera.profiling.trace.table import Trace
from tessera.viewer.columns import KEPT, MOST_SLICES
from tessera.viewer.runs import Run

_BYTES_AN_EVENT: Final[Mapping[str, int]] = {"kernels": 200, "roofline": 180, "overview": 130, "meta": 0}
"""What an answer needs at most for each event of its run, measured with 20 million events, and a tenth more."""
_BYTES_STREAMED: Final = 20
"""The same of analyses that stream the events."""
_BYTES_A_SLICE: Final = 380
"""What packing needs for each slice that a page gets."""
_BYTES_SUMMED: Final = 30
"""What it needs for each where most are summed."""
WINDOWED: Final = frozenset(["columns", "kernels"])
"""Questions that may be about a window of time."""
_GB: Final = 1e9
MEMINFO: Final = Path("/proc/meminfo")
"""Source: proc(5)."""


def require(run: Run, question: str, limit_bytes: float, window: tuple[int, int] | None = None) -> None:
    """Raises ProfileError where the answer to a question about a run, or about a window of it in nanoseconds, is
    estimated to take more than `limit_bytes`. Questions other than those of `WINDOWED` are always about the whole run.
    """
    if math.isinf(limit_bytes):  # nobody counts events for nothing
        return
    window = window if question in WINDOWED else None
    events = run.answer(("events", window), lambda trace: _events(trace, window))
    needed = needed_bytes(question, events)
    if needed > limit_bytes:
        allowed = f"more than the {limit_bytes / _GB:.3g} GB allowed"
        hints = [f"tessera-prof view --max-memory {needed / _GB + 0.1:.1f}"]
        if question in WINDOWED:
            hints.append("a window of time has fewer events")
        raise ProfileError(f"{events:,} events need about {needed / _GB:.3g} GB here, {allowed}", hints=hints)


def needed_bytes(question: str, events: int) -> int:
    """What the answer to a question about so many events is estimated to take."""
    if question == "columns":
        if events <= MOST_SLICES:
            return events * _BYTES_A_SLICE
        return events * _BYTES_SUMMED + MOST_SLICES // KEPT * _BYTES_A_SLICE
    return events * _BYTES_AN_EVENT.get(question, _BYTES_STREAMED)


def default_bytes(meminfo: Path = MEMINFO) -> float:
    """Half of the memory that is available on this machine; no limit where the system does not say."""
    try:
        told = meminfo.read_text()
    except OSError:
        return math.inf
    available = re.search(r"^MemAvailable:\s*(\d+) kB", told, re.MULTILINE)
    return int(available[1]) * 1024 / 2 if available else math.inf


def _events(trace: Trace, window: tuple[int, int] | None) -> int:
    found = trace.events
    if window is not None:
        found = found.filter(col("start_ns").is_between(*window, closed="left"))
    return int(found.select(polars.len()).collect(engine="streaming").item())
