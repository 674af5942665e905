"""Kernels whose warps diverge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.presentation.result import Analysis, bars
from tessera.profiling.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS: Final = {
    "kernel": "Kernel",
    "calls": "Calls",
    "total_ms": "Time(ms)",
    "share_pct": "Share(%)",
    "warp_divergence_pct": "Divergence(%)",
}


def divergence(trace: Trace, threshold: float) -> Analysis:
    """The kernels with at least `threshold` (0 to 1) divergent branches, the most divergent first."""
    if not 0 <= threshold <= 1:
        raise ArgumentError(f"threshold={threshold!r}", hints=["a fraction of the branches, 0 to 1: 0.2 is 20 %"])
    table = kernels.grouped(trace, "kernel", ("warp_divergence_pct",)).select(*_HEADINGS)
    found = table.filter(col("warp_divergence_pct") >= 100 * threshold).sort("warp_divergence_pct", descending=True)
    measured = len(table) - table["warp_divergence_pct"].null_count()
    return Analysis(
        title=f"Kernels with {100 * threshold:g} % divergent branches or more",
        table=found,
        headings=_HEADINGS,
        notes=(f"{len(found)} of {measured} kernels with a count of divergent branches, {len(table)} in all",)
        if len(table)
        else (kernels.NO_KERNEL,),
        missing=kernels.missing(trace, table, ("warp_divergence_pct",)),
        drawing=_draw,
    )


def _draw(figure: Figure, rows: polars.DataFrame) -> None:
    shown = rows.head(20)
    values = shown["warp_divergence_pct"].to_list()
    bars(figure, shown["kernel"].to_list(), values, "divergent branches, %", "Divergence by kernel")
