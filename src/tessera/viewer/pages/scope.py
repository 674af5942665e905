"""Of which part of a run an answer is: a window of time, a rank, a region, as a question's parameters say."""

from __future__ import annotations

from collections.abc import Mapping

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.trace.table import Trace

Parameters = Mapping[str, str]


def seen(asked: Parameters) -> tuple[tuple[int, int] | None, int | None, str | None]:
    """What is asked for of a run: a window of time, a rank, a region; each may be None."""
    return window(asked), integer(asked, "rank"), asked.get("region") or None


def narrowed(trace: Trace, asked: Parameters) -> Trace:
    """The events of a trace that began in the window that is asked for, of the rank, and in the region."""
    span, rank, region = seen(asked)
    found = trace.events
    if span is not None:
        found = found.filter(col("start_ns").is_between(*span, closed="left"))
    if rank is not None:
        found = found.filter(col("rank").fill_null(0) == rank)
    if region is not None:
        found = found.filter(col("region").cast(polars.String) == region)
    return trace if found is trace.events else Trace(found, trace.metadata, trace.capability)


def window(asked: Parameters) -> tuple[int, int] | None:
    """The window of time that is asked for, from `t0` to `t1` in nanoseconds."""
    t0, t1 = integer(asked, "t0"), integer(asked, "t1")
    return None if t0 is None or t1 is None else (t0, t1)


def integer(asked: Parameters, name: str) -> int | None:
    if name not in asked:
        return None
    try:
        return int(asked[name])
    except ValueError as error:
        raise ArgumentError(f"{name}={asked[name]!r}", hints=["a whole number"]) from error
