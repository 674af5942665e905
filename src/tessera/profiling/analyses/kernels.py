"""Kernels of a trace in groups: how often, how long, how much work, and counters weighted with time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.trace.table import COLUMNS, Trace

NAME: Final = polars.coalesce("operator", "kernel_name")
"""What a kernel is called in tables: its operator where the trace knows it."""

_LINE: Final = col("stack").cast(polars.String).str.split(";").list.last()
"""The innermost frame of the Python stack that made a kernel: file, line and function."""

GROUPS: Final[Mapping[str, polars.Expr]] = {
    "kernel": NAME,
    "operator": col("operator"),
    "shape": col("shapes"),
    "line": _LINE,
    "region": col("region"),
    "stream": polars.coalesce(col("stream_name").cast(polars.String), col("stream_id").cast(polars.String)),
    "thread": col("thread_id"),
    "device": col("device"),
    "rank": col("rank"),
    "dtype": col("dtype"),
    "schedule": col("schedule"),
    "source": col("schedule_source"),
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

NO_KERNEL: Final = "no kernel with a duration in this trace"


def kernels(trace: Trace) -> polars.LazyFrame:
    """The kernels of a trace that have a duration."""
    return trace.events.filter((col("kind") == "kernel") & (col("dur_ns") > 0))


@dataclass(frozen=True)
class Whereabouts:
    """How many kernels a trace has, and the devices and regions in which they ran, as far as it names them."""

    count: int
    devices: frozenset[str]
    regions: frozenset[str]


def whereabouts(trace: Trace) -> Whereabouts:
    """What tells where kernels ran."""
    return trace.once("whereabouts", _whereabouts)


def _whereabouts(trace: Trace) -> Whereabouts:
    names = [col(name).unique().implode().cast(polars.List(polars.String)) for name in ("device", "region")]
    count, *found = kernels(trace).select(polars.len(), *names).collect(engine="streaming").row(0)
    devices, regions = (frozenset(name for name in each if name is not None) for each in found)
    return Whereabouts(count, devices, regions)


def group(by: str) -> polars.Expr:
    """The expression that rows are grouped by. Raises ArgumentError for a name that there is not."""
    if by not in GROUPS:
        raise ArgumentError(f"group_by={by!r}", hints=[f"one of {', '.join(GROUPS)}"])
    return GROUPS[by]


def grouped(trace: Trace, by: str, counters: Sequence[str] = COUNTERS) -> polars.DataFrame:
    """A row per group, the one that takes most time first: `by`, calls, total_ms, share_pct, dtype (that of one of its
    kernels), workers (their mean), flops, bytes (null where those of a kernel are not known), and counters as means
    weighted with time.
    """
    found = trace.once(f"grouped by {by}", lambda trace: _grouped(trace, by))
    return found.drop(name for name in COUNTERS if name not in counters)


def _grouped(trace: Trace, by: str) -> polars.DataFrame:
    counters = COUNTERS
    counted = [name for name in ("flops", "bytes", *counters) if name not in trace.capability]
    duration = col("dur_ns")
    sums = {
        "dur_ns": duration.sum(),
        **{f"{name} sum": col(name).sum() for name in ("flops", "bytes") if name in counted},
        **{f"{name} nulls": col(name).null_count() for name in ("flops", "bytes") if name in counted},
        **{f"{name} time": (col(name).cast(polars.Float64) * duration).sum() for name in counted if name in counters},
        **{f"{name} known": (col(name).is_not_null() * duration).sum() for name in counted if name in counters},
    }
    found = (
        kernels(trace)
        .group_by(group(by).alias(by))
        .agg(
            polars.len().alias("calls"),
            col("workers").mean().cast(polars.Float64),
            col("dtype").first().cast(polars.String).alias("first dtype"),
            **sums,
        )
        .collect(engine="streaming")
    )
    text = polars.String if found.schema[by] == polars.Categorical() else found.schema[by]
    return found.select(
        col(by).cast(text),
        "calls",
        total_ms=duration / 1e6,
        share_pct=100 * duration / duration.sum(),
        **({} if by == "dtype" else {"dtype": col("first dtype")}),
        workers="workers",
        **{name: _sum(name, name in counted) for name in ("flops", "bytes")},
        **{name: _mean(name, name in counted) for name in counters},
    ).sort("total_ms", by, descending=[True, False], nulls_last=True)


def _sum(name: str, known: bool) -> polars.Expr:
    """The sum of a column, null where an event of the group has no value."""
    return polars.when(col(f"{name} nulls") == 0).then(col(f"{name} sum")) if known else _NONE


def _mean(name: str, known: bool) -> polars.Expr:
    """The mean over the time of those events that have a value, null where none has."""
    seconds = col(f"{name} known")
    return polars.when(seconds > 0).then(col(f"{name} time") / seconds) if known else _NONE


_NONE: Final = polars.lit(None, polars.Float64)


def missing(trace: Trace, table: polars.DataFrame, columns: Iterable[str]) -> dict[str, str]:
    """Of these columns, those that are null in every row, each with the reason that the trace gives."""
    return missing_in_trace(trace, (name for name in columns if len(table) and table[name].null_count() == len(table)))


def present(trace: Trace, columns: Iterable[str]) -> set[str]:
    """Those of some columns that have a value in any event: the first is looked for, which is mostly near."""
    firsts = {name: trace.events.select(name).filter(col(name).is_not_null()).head(1) for name in columns}
    return {name for name, first in firsts.items() if len(first.collect(engine="streaming"))}


def missing_in_trace(trace: Trace, columns: Iterable[str]) -> dict[str, str]:
    """Why the kernels of a trace have no value in these columns."""
    asked = list(columns)
    untold = [name for name in asked if name not in trace.capability and name in COLUMNS]
    sampled = present(trace, untold)
    source = trace.metadata.get("source", "this format")
    unknown = f"no kernel of this trace has it, and traces of {source} do not say why"
    reasons = {name: _TOO_SHORT if name in sampled else unknown for name in untold}
    return {name: trace.capability.get(name) or reasons.get(name) or _MADE.get(name, unknown) for name in asked}


_TOO_SHORT: Final = (
    "sampled, but no kernel lasted from one sample to the next; a smaller sample_interval_ms, or larger kernels"
)
NO_TRAFFIC: Final = (
    "the cost model does not count L1 and L2 of attention and convolutions, L1 of windows, and knows nothing of "
    "libraries and GPUs; counters tell L3 and DRAM of kernels that last from one sample to the next"
)
"""Why kernels have no bytes of a memory level."""
_MADE: Final = {
    "achieved_gbps": "the bytes of these kernels are not known; kernels that Tessera compiled have them",
    **dict.fromkeys(("l1_mb", "l2_mb", "l3_mb", "dram_mb", "traffic_by"), NO_TRAFFIC),
    "scratch_mb": "the scratch memory of these kernels is not known; that of CPU kernels that Tessera compiled is",
}
"""Why columns that analyses make of others are null."""
