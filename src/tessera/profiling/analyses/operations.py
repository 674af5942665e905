"""Kernels by operator, element type and work: two shapes of one operator are two rows, with percentiles and first calls
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars
from polars import col

from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.durations import KEYS, histograms_of, kernel_bins
from tessera.profiling.analyses.presentation.result import Analysis, work
from tessera.profiling.analyses.roofline import SUMS, above_of, doubts_of
from tessera.profiling.recording.totals import OperatorTotal
from tessera.profiling.report.bounds import DeviceBounds
from tessera.profiling.report.operators import latency, told_totals
from tessera.profiling.trace.table import Trace
from tessera.target import Target

MOST_ROWS: Final = 1000
"""Rows of their own; with dynamic shapes there may be a million kinds of work. What takes less time is one row."""

MOST_EXACT: Final = 2_000_000
"""Kernels of which all durations are looked at together."""

_HEADINGS: Final = {
    "kernel": "Kernel",
    "dtype": "Dtype",
    "work": "Work",
    "calls": "Calls",
    "total_ms": "Total(ms)",
    "share_pct": "Share(%)",
    "median_us": "Median(us)",
    "efficiency_pct": "Of the bound(%)",
    "binding": "Bound by",
    "gflop_per_s": "GFLOP/s",
    "achieved_gbps": "GB/s",
    "p10_us": "p10(us)",
    "p90_us": "p90(us)",
    "max_us": "Max(us)",
    "first_us": "First(us)",
    "workers": "Workers",
    "device": "Device",
    "schedule": "Schedule",
    "schedule_source": "Chosen by",
    "backend": "Backend",
}
_TEXTS: Final = ("kernel", "dtype", "work", "binding", "device", "schedule", "schedule_source", "backend")
_TYPES: Final = {**dict.fromkeys(_TEXTS, polars.String), **dict.fromkeys(("calls", "workers"), polars.Int64)}
_UNSUMMED: Final = ("p10_us", "p90_us", "max_us", "schedule", "backend")
"""Columns that kernels whose sums alone were kept have no value of."""
_NO_CEILINGS: Final = "no ceilings of the device that recorded the trace are known; `tessera quickstart` measures them"


def operations(trace: Trace, target: Target | None) -> Analysis:
    """A row per kernel and work, what takes most time first. Rates and bounds are those of the median call; `first_us`
    is the first call, which is often cold. Bounds are null without the ceilings of `target`.
    """
    found = works(trace)
    whole = float(found["total_ms"].sum())
    ceilings = None if target is None else target.ceilings
    bounds = None if target is None or ceilings is None else DeviceBounds(ceilings, target.memory)
    kind = None if target is None else target.kind
    rows = [_row(row, whole, bounds, kind) for row in found.head(MOST_ROWS).iter_rows(named=True)]
    rest = found.slice(MOST_ROWS)
    if len(rest):
        total = float(rest["total_ms"].sum())
        others = {"kernel": f"{len(rest):,} others", "calls": int(rest["calls"].sum()), "total_ms": total}
        rows.append(dict.fromkeys(rows[0]) | others | {"share_pct": 100 * total / whole})
    table = polars.DataFrame(rows, {name: _TYPES.get(name, polars.Float64) for name in _HEADINGS}, orient="row")
    told = {"binding": _NO_CEILINGS, "efficiency_pct": _NO_CEILINGS}
    summed = bool(trace.metadata.get("totals"))
    if summed:
        told |= dict.fromkeys(_UNSUMMED, "only sums of the kernels were kept")
    missing = {name: why for name, why in told.items() if len(table) and table[name].null_count() == len(table)}
    calls = int(found["calls"].sum())
    binned = (f"medians and percentiles of {calls:,} kernels are within 0.4 %",) if calls > MOST_EXACT else ()
    notes = (
        *binned,
        *([SUMS] if summed else []),
        *above_of(table["efficiency_pct"].fill_null(0).to_list()),
        *doubts_of(ceilings),
    )
    return Analysis("Kernels", table, _HEADINGS, notes, missing)


def works(trace: Trace) -> polars.DataFrame:
    """The kinds of work behind the rows, in their order: `KEYS`, calls and durations. Of more than `MOST_EXACT` kernels
    medians and percentiles are those of histograms, which take little memory. Of kernels whose sums alone were kept
    the median is the mean of the calls after the first.
    """
    return trace.once("works", _works)


def _works(trace: Trace) -> polars.DataFrame:
    named = kernels.kernels(trace).with_columns(kernel=kernels.NAME)
    many = kernels.whereabouts(trace).count > MOST_EXACT
    found = _binned(named, kernel_bins(trace)) if many else _exact(named)
    found = found.with_columns(col(polars.Categorical).cast(polars.String))
    sums = [_summed(each) for each in told_totals(trace) if each.seconds > 0]
    if sums:
        found = polars.concat([found, polars.DataFrame(sums, found.schema, orient="row")])
    return found.sort("total_ms", *KEYS, descending=[True, *[False] * len(KEYS)])


def _summed(total: OperatorTotal) -> dict[str, Any]:
    """A row of `works` of kernels whose sums alone were kept."""
    device = f"cuda:{total.device - 1}" if total.device else "cpu"
    work = {"kernel": total.operator, "dtype": total.dtype, "flops": total.flops, "bytes": total.bytes}
    times = {"total_ms": 1e3 * total.seconds, "median_us": 1e6 * latency(total)}
    first_us = None if total.first is None else 1e6 * total.first
    told = {"schedule_source": total.schedule_source or None, "first_us": first_us}
    return {**work, **told, "device": device, "workers": total.workers, "calls": total.calls, **times}


def _exact(named: polars.LazyFrame) -> polars.DataFrame:
    taken = col("dur_ns")
    return (
        named.group_by(*KEYS)
        .agg(
            calls=polars.len(),
            total_ms=taken.sum() / 1e6,
            median_us=taken.median() / 1e3,
            p10_us=taken.quantile(0.1, "nearest") / 1e3,
            p90_us=taken.quantile(0.9, "nearest") / 1e3,
            max_us=taken.max() / 1e3,
            first_us=taken.get(col("start_ns").arg_min()) / 1e3,
        )
        .collect(engine="streaming")
    )


def _binned(named: polars.LazyFrame, bins: polars.DataFrame) -> polars.DataFrame:
    known = bins.group_by(*KEYS).agg(
        calls=col("count").sum(),
        total_ms=col("taken_ns").sum() / 1e6,
        max_us=col("most").max() / 1e3,
        begun=col("begun").min(),
    )
    begins = known["begun"].unique()
    at = col("start_ns")
    begun = named.filter((at <= begins.max()) & at.is_in(begins.implode()))
    firsts = begun.select(*KEYS, "dur_ns", begun=at).collect(engine="streaming")
    firsts = firsts.with_columns(col(polars.Categorical).cast(polars.String))
    firsts = firsts.group_by(*KEYS, "begun").agg(first_us=col("dur_ns").first() / 1e3)
    spreads = [
        (*key, each.median_ns / 1e3, each.quantile_ns(0.1) / 1e3, each.quantile_ns(0.9) / 1e3)
        for key, each in histograms_of(bins, KEYS).items()
    ]
    schema = {name: known.schema[name] for name in KEYS}
    percentiles = dict.fromkeys(("median_us", "p10_us", "p90_us"), polars.Float64)
    spread = polars.DataFrame(spreads, {**schema, **percentiles}, orient="row")
    joined = known.join(firsts, on=[*KEYS, "begun"], how="left", nulls_equal=True)
    return joined.drop("begun").join(spread, on=list(KEYS), how="left", nulls_equal=True)


def _row(row: Mapping[str, Any], whole: float, bounds: DeviceBounds | None, kind: str | None) -> dict[str, Any]:
    seconds = row["median_us"] / 1e6
    flops, nbytes, workers = row["flops"] or 0.0, row["bytes"] or 0.0, row["workers"] or 1
    least = None
    if bounds is not None and (row["device"] or "cpu") == kind:
        least = bounds.of(flops, nbytes, row["dtype"] or "", workers)
    return {
        **row,
        "work": row["shapes"] or work(row["flops"], row["bytes"]),
        "share_pct": 100 * row["total_ms"] / whole,
        "gflop_per_s": flops / seconds / 1e9 if flops else None,
        "achieved_gbps": nbytes / seconds / 1e9 if nbytes else None,
        "efficiency_pct": None if least is None else 100 * least.seconds / seconds,
        "binding": None if least is None else least.binding,
    }
