"""Kernels of a trace in groups: how often, how long, how much work, and counters weighted with time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.table import Trace

NAME: Final = polars.coalesce(col("operator").cast(polars.String), col("kernel_name").cast(polars.String))
"""What a kernel is called in tables: its operator where the trace knows it."""

GROUPS: Final[Mapping[str, polars.Expr]] = {
    "kernel": NAME,
    "region": col("region").cast(polars.String),
    "stream": polars.coalesce(col("stream_name").cast(polars.String), col("stream_id").cast(polars.String)),
    "thread": col("thread_id"),
    "device": col("device").cast(polars.String),
    "rank": col("rank"),
    "dtype": col("dtype").cast(polars.String),
    "schedule": col("schedule").cast(polars.String),
}
"""What rows can be grouped by."""

COUNTERS: Final = (
    "sm_occupancy",
    "warp_divergence_pct",
    "inst_issue_eff_pct",
    "mem_stall_pct",
    "dram_read_gbps",
    "dram_write_gbps",
    "l2_hit_rate",
    "smem_bank_conflicts",
    "tc_util_pct",
    "alu_util_pct",
    "cp_async_inflight",
)
"""Columns that hardware counters fill."""


def kernels(trace: Trace) -> polars.LazyFrame:
    """The kernels of a trace that have a duration."""
    return trace.events.filter((col("kind") == "kernel") & (col("dur_ns") > 0))


def group(by: str) -> polars.Expr:
    """The expression that rows are grouped by. Raises ArgumentError for a name that there is not."""
    if by not in GROUPS:
        raise ArgumentError(f"group_by={by!r}", hints=[f"one of {', '.join(GROUPS)}"])
    return GROUPS[by]


def grouped(trace: Trace, by: str, counters: Iterable[str] = COUNTERS) -> polars.DataFrame:
    """A row per group, the one that takes most time first: `by`, calls, total_ms, share_pct, flops, bytes, and counters
    as means weighted with time.
    """
    weighted = [mean_over_time(name) for name in counters]
    found = (
        kernels(trace)
        .group_by(group(by).alias(by))
        .agg(
            polars.len().alias("calls"),
            (col("dur_ns").sum() / 1e6).alias("total_ms"),
            _complete_sum("flops"),
            _complete_sum("bytes"),
            *weighted,
        )
        .collect(engine="streaming")
    )
    share = (100 * col("total_ms") / col("total_ms").sum()).alias("share_pct")
    return found.with_columns(share).sort("total_ms", by, descending=[True, False], nulls_last=True)


def mean_over_time(name: str) -> polars.Expr:
    """The mean of a column weighted with the duration of events that have it, null where none has."""
    seconds = col("dur_ns").filter(col(name).is_not_null()).sum()
    weighted = (col(name).cast(polars.Float64) * col("dur_ns")).sum()
    return polars.when(seconds > 0).then(weighted / seconds).alias(name)


def _complete_sum(name: str) -> polars.Expr:
    """The sum of a column, null where an event of the group has no value."""
    return polars.when(col(name).null_count() == 0).then(col(name).sum()).alias(name)


def missing(trace: Trace, table: polars.DataFrame, columns: Iterable[str]) -> dict[str, str]:
    """Of these columns, those that are null in every row, each with the reason that the trace gives."""
    return missing_in_trace(trace, (name for name in columns if len(table) and table[name].null_count() == len(table)))


def missing_in_trace(trace: Trace, columns: Iterable[str]) -> dict[str, str]:
    """Why a trace has no value in these columns."""
    unknown = f"no event of this trace has it, and {trace.metadata.get('source', 'its source')} does not say why"
    return {name: trace.capability.get(name, unknown) for name in columns}
