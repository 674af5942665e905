"""One row per operator: the numbers behind the report and the summary file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tessera.errors import ProfileError
from tessera.profiling.recording.totals import OperatorTotal
from tessera.profiling.report.bounds import DeviceBounds
from tessera.target import Ceilings, MemoryLevel

if TYPE_CHECKING:
    import polars

    from tessera.profiling.trace.table import Trace


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All kernels of one operator label, element type and work on so many workers. Work is that of a kernel.

    `latency_ms` is the median of a call, of sums alone the mean of the calls after the first, which is often cold;
    rates and `efficiency_pct` are those of that time. `efficiency_pct` is the time that the measured ceilings allow
    over the time taken, in percent; `binding` what sets that bound. Both are None where a kernel's ceilings were not
    measured or its work is not known, `p90_ms` where sums alone were kept, `first_ms` in sums of older versions.
    `schedule_source` says who chose the schedule, where that was recorded.
    """

    operator: str
    dtype: str
    calls: int
    total_ms: float
    latency_ms: float
    first_ms: float | None
    p90_ms: float | None
    fastest_ms: float
    gflop: float
    gflop_per_s: float
    bandwidth_gbps: float
    efficiency_pct: float | None
    binding: str | None
    schedule_source: str | None = None


def by_operator(
    totals: Iterable[OperatorTotal], ceilings: Ceilings | None, levels: Sequence[MemoryLevel] = ()
) -> list[OperatorRow]:
    """Rows in order of each first kernel: two shapes of an operator are two rows. `ceilings` None: efficiencies are
    None, as those of other devices than CPUs, whose ceilings these are.
    """
    bounds = None if ceilings is None else DeviceBounds(ceilings, levels)
    merged: dict[tuple[object, ...], OperatorTotal] = {}
    for total in totals:
        key = total.operator, total.dtype, total.flops, total.bytes, total.workers, total.device, total.schedule_source
        known = merged.get(key)
        merged[key] = total if known is None else _together(known, total)
    return [_row(total, None if total.device else bounds) for total in merged.values()]


def _together(one: OperatorTotal, other: OperatorTotal) -> OperatorTotal:
    """The sums of two; medians of both together are not known."""
    return replace(
        one,
        calls=one.calls + other.calls,
        seconds=one.seconds + other.seconds,
        fastest=min(one.fastest, other.fastest),
        median=None,
        p90=None,
    )


def told_totals(trace: Trace) -> list[OperatorTotal]:
    """The sums that a trace's metadata tell of sessions that kept sums alone. Raises ProfileError where they tell
    something else.
    """
    try:
        told = [OperatorTotal(**each) for each in trace.metadata.get("totals", ())]
    except TypeError as error:
        raise ProfileError(f"the sums in the trace's metadata are damaged: {error}") from error
    return told


def totals_of(trace: Trace) -> list[OperatorTotal]:
    """The sums of a trace's kernels, and `told_totals`."""
    return [*told_totals(trace), *_summed(trace)]


def longest_of(trace: Trace, most: int) -> tuple[list[OperatorTotal], int, float]:
    """`totals_of` those `most` that take most time, in their order; how many others there are, and their seconds. With
    dynamic shapes there may be a million.
    """
    if trace.metadata.get("totals"):
        found = totals_of(trace)
        longest = sorted(range(len(found)), key=lambda place: -found[place].seconds)[:most]
        shown = [found[place] for place in sorted(longest)]
        return shown, len(found) - len(shown), sum(each.seconds for each in found) - sum(each.seconds for each in shown)
    groups = _groups(trace).with_row_index("place")
    kept = groups.sort("total", "place", descending=[True, False]).head(most).sort("place").drop("place")
    seconds = float(groups["total"].sum()) - float(kept["total"].sum())
    return _totals(kept), len(groups) - len(kept), seconds


def _summed(trace: Trace) -> list[OperatorTotal]:
    return _totals(_groups(trace))


def _groups(trace: Trace) -> polars.DataFrame:
    import polars

    work = ("dtype", "device", "workers", "flops", "bytes", "schedule_source")
    name = polars.coalesce(polars.col("operator", "kernel_name").cast(polars.String)).alias("operator")
    taken = polars.col("dur_ns")
    return (
        trace.events.filter(polars.col("kind") == "kernel")
        .group_by(name, *work)
        .agg(
            calls=polars.len(),
            total=taken.sum() / 1e9,
            fastest=taken.min() / 1e9,
            begun=polars.col("start_ns").min(),
            first=taken.sort_by("start_ns").first() / 1e9,
            median=taken.median() / 1e9,
            p90=taken.quantile(0.9, "nearest") / 1e9,
        )
        .sort("begun", "operator", *work)
        .collect()
    )


def _totals(groups: polars.DataFrame) -> list[OperatorTotal]:
    return [
        OperatorTotal(
            operator=row["operator"] or "",
            dtype=row["dtype"] or "",
            flops=row["flops"] or 0.0,
            bytes=row["bytes"] or 0.0,
            workers=row["workers"] or 1,
            device=int((row["device"] or "cpu") != "cpu"),
            calls=row["calls"],
            seconds=row["total"],
            fastest=row["fastest"],
            first=row["first"],
            median=row["median"],
            p90=row["p90"],
            schedule_source=row["schedule_source"] or "",
        )
        for row in groups.iter_rows(named=True)
    ]


def _row(total: OperatorTotal, bounds: DeviceBounds | None) -> OperatorRow:
    seconds = max(latency(total), 1e-12)  # the clock may show no time at all for a kernel of a few nanoseconds
    least = None if bounds is None else bounds.of(total.flops, total.bytes, total.dtype, total.workers)
    return OperatorRow(
        operator=total.operator,
        dtype=total.dtype,
        calls=total.calls,
        total_ms=1e3 * total.seconds,
        latency_ms=1e3 * latency(total),
        first_ms=None if total.first is None else 1e3 * total.first,
        p90_ms=None if total.p90 is None else 1e3 * total.p90,
        fastest_ms=1e3 * total.fastest,
        gflop=total.flops / 1e9,
        gflop_per_s=total.flops / seconds / 1e9,
        bandwidth_gbps=total.bytes / seconds / 1e9,
        efficiency_pct=None if least is None else 100 * least.seconds / seconds,
        binding=None if least is None else least.binding,
        schedule_source=total.schedule_source or None,
    )


def latency(total: OperatorTotal) -> float:
    """Seconds of a call: the median where it is known, else the mean without the first."""
    if total.median is not None:
        return total.median
    if total.calls < 2 or total.first is None:
        return total.seconds / total.calls
    return (total.seconds - total.first) / (total.calls - 1)
