"""Where kernels wait for memory: stalls, issue efficiency and traffic by kernel, region, stream, ..."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars
from polars import col

from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.presentation.result import Analysis, bars
from tessera.profiling.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTERS: Final = (
    "mem_stall_pct",
    "inst_issue_eff_pct",
    "dram_read_gbps",
    "dram_write_gbps",
    "l2_hit_rate",
    "smem_bank_conflicts",
)
_UNTOLD: Final = (
    "the rest is not told apart: no counter that is read says how much of it waits for earlier results, for units that "
    "are busy, or at barriers"
)
_HEADINGS: Final = {
    "calls": "Calls",
    "total_ms": "Time(ms)",
    "share_pct": "Share(%)",
    "mem_stall_pct": "Memory stalls(%)",
    "inst_issue_eff_pct": "Issue(%)",
    "dram_read_gbps": "DRAM read(GB/s)",
    "dram_write_gbps": "DRAM write(GB/s)",
    "l2_hit_rate": "L2 hits",
    "smem_bank_conflicts": "Bank conflicts",
    "achieved_gbps": "Achieved(GB/s)",
}


def stalls(trace: Trace, group_by: str) -> Analysis:
    """Rows by time; `achieved_gbps` counts each operand and result of the kernels once, from the compiler's facts."""
    table = kernels.grouped(trace, group_by, _COUNTERS).with_columns(
        achieved_gbps=col("bytes") / (1e6 * col("total_ms"))
    )
    return Analysis(
        title=f"Stalls by {group_by}",
        table=table.select(group_by, *_HEADINGS),
        headings={group_by: group_by.capitalize(), **_HEADINGS},
        notes=_notes(table),
        missing=kernels.missing(trace, table, (*_COUNTERS, "achieved_gbps")),
        optional=("smem_bank_conflicts", "achieved_gbps", "inst_issue_eff_pct", "calls", "l2_hit_rate", "share_pct"),
        drawing=lambda figure, rows: _draw(figure, rows, group_by),
    )


def _notes(table: polars.DataFrame) -> tuple[str, ...]:
    if table.is_empty():
        return (kernels.NO_KERNEL,)
    return (_UNTOLD,) if table["mem_stall_pct"].null_count() < len(table) else ()


def _draw(figure: Figure, rows: polars.DataFrame, by: str) -> None:
    """Memory stalls of the groups that take most time; without counters, the time itself."""
    measured = rows["mem_stall_pct"].null_count() < len(rows)
    shown = (rows.filter(col("mem_stall_pct").is_not_null()) if measured else rows).head(20)
    name, axis = ("mem_stall_pct", "memory stalls, % of cycles") if measured else ("total_ms", "time, ms")
    title = f"Stalls by {by}" if measured else f"Time by {by}: memory stalls were not counted"
    bars(figure, [str(label) for label in shown[by].to_list()], shown[name].to_list(), axis, title)
