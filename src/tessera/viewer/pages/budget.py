"""How much memory answers may take: what an answer needs is estimated by its events before it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import polars
from polars import col

from tessera.errors import ProfileError
from tessera.profiling.analyses.operations import MOST_EXACT
from tessera.profiling.trace.table import Trace
from tessera.viewer.pages.columns import KEPT, MOST_SLICES
from tessera.viewer.runs import Run

_BYTES_EXACT: Final[Mapping[str, int]] = {"kernels": 200, "kernel": 200, "meta": 0}
"""What an answer needs for each event of which all durations are looked at together."""
_BYTES_STREAMED: Final = 20
"""What analyses that stream the events need at most for each, measured with 20 million events, and a tenth more."""
_BYTES_A_SLICE: Final = 380
"""What packing needs for each slice that a page gets."""
_BYTES_SUMMED: Final = 20
"""What it needs for each where most are summed."""
WHOLE: Final = frozenset(["meta", "overview"])
"""Questions for which the whole run is read; all others may be about a window of time."""
_GB: Final = 1e9


def require(run: Run, question: str, limit_bytes: float, window: tuple[int, int] | None = None) -> None:
    """Raises ProfileError where the answer to a question about a run, or about a window of it in nanoseconds, is
    estimated to take more than `limit_bytes`. Questions of `WHOLE` are always about the whole run.
    """
    if math.isinf(limit_bytes):  # nobody counts events for nothing
        return
    window = None if question in WHOLE else window
    events = run.answer(("events", window), lambda trace: _events(trace, window))
    needed = needed_bytes(question, events)
    if needed > limit_bytes:
        allowed = f"more than the {limit_bytes / _GB:.3g} GB allowed"
        hints = [f"tessera-prof view --max-memory {needed / _GB + 0.1:.1f}"]
        if question not in WHOLE:
            hints.append("a window of time has fewer events")
        raise ProfileError(f"{events:,} events need about {needed / _GB:.3g} GB here, {allowed}", hints=hints)


def needed_bytes(question: str, events: int) -> int:
    """What the answer to a question about so many events is estimated to take."""
    if question == "columns":
        if events <= MOST_SLICES:
            return events * _BYTES_A_SLICE
        return events * _BYTES_SUMMED + MOST_SLICES // KEPT * _BYTES_A_SLICE
    exact = min(events, MOST_EXACT)
    return exact * _BYTES_EXACT.get(question, _BYTES_STREAMED) + (events - exact) * _BYTES_STREAMED


def _events(trace: Trace, window: tuple[int, int] | None) -> int:
    found = trace.events
    if window is not None:
        found = found.filter(col("start_ns").is_between(*window, closed="left"))
    return int(found.select(polars.len()).collect(engine="streaming").item())
