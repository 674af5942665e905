"""Python stacks with the time of what they ran: of the kernels that they made, and of samples of py-spy."""

from __future__ import annotations

from typing import Any, Final

import polars
from polars import col

from tessera.profiling.analyses.kernels import NAME
from tessera.profiling.trace.table import Trace

MOST_STACKS: Final = 2000
LONGEST: Final = 10_000
_SOURCES: Final = {"kernel": "kernels", "sample": "samples of py-spy"}


def stacks(trace: Trace) -> dict[str, Any]:
    """`sources`: for kernels, and for samples, `stacks` as [frames joined by ";", outermost first; the kernel, or "";
    nanoseconds; calls], those that take most time first, and their `total` number. Without any, `reason`.
    """
    found = (
        trace.events.filter(col("stack").is_not_null() & col("kind").is_in(list(_SOURCES)))
        .group_by(
            kind=col("kind").cast(polars.String),
            stack=col("stack").cast(polars.String).str.slice(0, LONGEST),
            name=polars.when(col("kind") == "kernel").then(NAME.cast(polars.String)).otherwise(polars.lit("")),
        )
        .agg(taken=col("dur_ns").fill_null(0).clip(0).sum(), calls=polars.len())
        .sort("taken", "stack", "name", descending=[True, False, False])
        .collect(engine="streaming")
    )
    sources = []
    for kind, title in _SOURCES.items():
        own = found.filter(col("kind") == kind)
        if len(own):
            rows = own.head(MOST_STACKS).select("stack", "name", "taken", "calls").rows()
            sources.append({"title": title, "stacks": rows, "total": len(own)})
    reason = "" if sources else "no Python stacks were recorded: with_stack=True keeps those that made kernels, "
    return {"sources": sources, "reason": reason + "tessera-prof --stacks samples them" if reason else None}
