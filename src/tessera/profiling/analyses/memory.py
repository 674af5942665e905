"""Bytes: what kernels achieve, what memory moved where counters tell, and copies with their overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars
from polars import col

from tessera.profiling.analyses import kernels, sweep, traffic
from tessera.profiling.analyses.presentation.result import Analysis, bars
from tessera.profiling.report.bounds import bandwidth
from tessera.profiling.trace.recorded_target import recorded_target
from tessera.profiling.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTERS: Final = ("dram_read_gbps", "dram_write_gbps", "l2_hit_rate", "smem_bank_conflicts")
_HEADINGS: Final = {
    "kind": "Kind",
    "name": "Name",
    "calls": "Calls",
    "total_ms": "Time(ms)",
    "bytes": "Bytes",
    "achieved_gbps": "Achieved(GB/s)",
    "overlap_pct": "Beside kernels(%)",
    "dram_read_gbps": "DRAM read(GB/s)",
    "dram_write_gbps": "DRAM write(GB/s)",
    "l2_hit_rate": "L2 hits",
    "smem_bank_conflicts": "Bank conflicts",
    "l1_mb": "L1(MB)",
    "l2_mb": "L2(MB)",
    "l3_mb": "L3(MB)",
    "dram_mb": "DRAM(MB)",
    "traffic_by": "Traffic by",
    "scratch_mb": "Scratch(MB)",
}
_NOTES: Final = (
    "bytes: operands read once and results written once, from the compiler's facts; copies: what they copied",
    "L1 to DRAM: what all calls find there and write there; estimate: by the cost model, which takes what fits into a "
    "cache to be there; counters: L3 and DRAM as the processor or its memory controllers counted them",
)
_OPTIONAL: Final = (
    *("scratch_mb", "kind", "smem_bank_conflicts", "bytes", "overlap_pct", "l1_mb", "l2_hit_rate", "l2_mb"),
    *("dram_read_gbps", "dram_write_gbps", "calls"),
)


def memory(trace: Trace) -> Analysis:
    """A row per kernel, then one per direction of copies. `overlap_pct` is the share of a copy's time in which a kernel
    of its rank ran. `l1_mb` to `dram_mb` are what all calls find in and write to a memory level, and `traffic_by` says
    which of these were counted; the others and `scratch_mb` are the compiler's estimates. The columns before them are
    measured.
    """
    moved = kernels.grouped(trace, "kernel", _COUNTERS).rename({"kernel": "name"})
    moved = moved.join(traffic.breakdown(trace), on="name", how="left", maintain_order="left")
    table = polars.concat(
        [moved.with_columns(kind=polars.lit("kernel"), overlap_pct=polars.lit(None, polars.Float64)), _copies(trace)],
        how="diagonal",
    ).with_columns(achieved_gbps=col("bytes") / (1e6 * col("total_ms")))
    return Analysis(
        title="Memory",
        table=table.select(*_HEADINGS),
        headings=_HEADINGS,
        notes=(*_NOTES, *_uncounted(moved)) if len(table) else (kernels.NO_KERNEL, "no copy, either"),
        missing=kernels.missing(trace, moved, (*_COUNTERS, *traffic.COLUMNS, "traffic_by")),
        drawing=lambda figure, rows: _draw(figure, rows, _ceiling(trace)),
        optional=_OPTIONAL,
    )


def _uncounted(moved: polars.DataFrame) -> list[str]:
    """What a missing level means, where some kernels have one."""
    some = [name for name in traffic.LEVELS.values() if 0 < moved[name].null_count() < len(moved)]
    return [f"-: not known; {kernels.NO_TRAFFIC}"] if some else []


def _copies(trace: Trace) -> polars.DataFrame:
    copies = (
        trace.events.filter((col("kind") == "memcpy") & (col("dur_ns") > 0))
        .select(
            col("rank").fill_null(0),
            "start_ns",
            "dur_ns",
            "bytes",
            end_ns=col("start_ns") + col("dur_ns"),
            name=col("memcpy_dir").cast(polars.String),
        )
        .collect(engine="streaming")
    )
    covered, _ = sweep.overlaps(kernels.kernels(trace), copies)
    return (
        copies.with_columns(covered=polars.Series(covered, dtype=polars.Float64))
        .group_by("name")
        .agg(
            polars.lit("copy").alias("kind"),
            polars.len().alias("calls"),
            (col("dur_ns").sum() / 1e6).alias("total_ms"),
            polars.when(col("bytes").null_count() == 0).then(col("bytes").sum()).alias("bytes"),
            (100 * col("covered").sum() / col("dur_ns").sum()).alias("overlap_pct"),
        )
        .sort("total_ms", "name", descending=[True, False])
    )


def _ceiling(trace: Trace) -> float | None:
    """What the memory behind the caches of the CPU that recorded a trace can do, in GB/s, where that is known."""
    target = recorded_target(trace.metadata)
    if target is None or target.ceilings is None or not target.memory:
        return None
    known = target.ceilings
    try:
        return bandwidth(known, target.memory[-1].name, max(known.worker_counts())) / 1e9
    except ValueError:  # that level was not measured
        return None


def _draw(figure: Figure, rows: polars.DataFrame, ceiling_gbps: float | None) -> None:
    shown = rows.filter(col("achieved_gbps").is_not_null()).head(20)
    bars(figure, shown["name"].to_list(), shown["achieved_gbps"].to_list(), "achieved, GB/s", "Memory")
    if ceiling_gbps is not None:
        (axes,) = figure.axes
        axes.axvline(ceiling_gbps, color="#c8553d", linewidth=1.2)
        axes.annotate(
            f"memory's ceiling, {ceiling_gbps:.0f} GB/s",
            (ceiling_gbps, 0),
            (4, 4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color="#c8553d",
            fontsize=8,
        )
