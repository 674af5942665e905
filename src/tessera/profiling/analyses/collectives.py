"""Collectives: how long, how fast, and how much of their time kernels of the same rank ran beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy
import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels, sweep
from tessera.profiling.analyses.presentation.result import Analysis
from tessera.profiling.analyses.sweep import Span
from tessera.profiling.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS: Final = {
    "collective": "Collective",
    "axis": "Axis",
    "bytes": "Bytes",
    "algorithm": "Algorithm",
    "ranks": "Ranks",
    "calls": "Calls",
    "median_us": "Median(us)",
    "total_ms": "Time(ms)",
    "bandwidth_gbps": "Bytes/time(GB/s)",
    "overlap_pct": "Overlap(%)",
    "exposed_ms": "Exposed(ms)",
    "wait_us": "Wait(us)",
    "wire_bytes": "Sent(bytes)",
    "skew_us": "Skew(us)",
    "late_rank": "Late rank",
}


def collectives(trace: Trace, min_bytes: int) -> Analysis:
    """Rows by time, over all ranks, of collectives of at least `min_bytes`.

    `overlap_pct` is the share of their time in which a kernel of their rank ran, `exposed_ms` the rest. `skew_us` is
    the median time between the first and the last rank's arrival, where ranks can be compared; `late_rank` is the one
    that came last by most time. `wait_us` is the median time for which a rank waited for the last one, `wire_bytes`
    what a rank sent over the network, both where the collective itself tells.
    """
    if min_bytes < 0:
        raise ArgumentError(f"min_bytes={min_bytes!r}", hints=["bytes, 0 for all collectives"])
    found, _ = overlapped(trace)
    events = found.filter(col("bytes").fill_null(0) >= min_bytes)
    table = by_kind(events)
    return Analysis(
        title="Collectives" + (f" of {min_bytes:,} bytes or more" if min_bytes else ""),
        table=table,
        headings=_HEADINGS,
        notes=(*_smaller(found, events), *_notes(trace, events)),
        missing=_missing(trace, table),
        drawing=lambda figure, _: _draw(figure, cells(events)),
        optional=("late_rank", "wire_bytes", "axis", "algorithm", "total_ms", "ranks", "bandwidth_gbps", "calls"),
    )


def by_kind(events: polars.DataFrame) -> polars.DataFrame:
    """A row per type, axis of a mesh, bytes and algorithm of what `overlapped` gave, most time first."""
    keys = ["collective", "axis", "bytes", "algorithm"]
    known = col("covered_ns").null_count() == 0
    # One process alone moves nothing.
    moved = (col("bytes").null_count() == 0) & col("algorithm").first().ne_missing("identity")
    return (
        events.group_by(keys)
        .agg(
            col("rank").n_unique().alias("ranks"),
            polars.len().alias("calls"),
            (col("dur_ns").median() / 1e3).alias("median_us"),
            (col("dur_ns").sum() / 1e6).alias("total_ms"),
            polars.when(moved).then(col("bytes").sum() / col("dur_ns").sum()).alias("bandwidth_gbps"),
            polars.when(known).then(100 * col("covered_ns").sum() / col("dur_ns").sum()).alias("overlap_pct"),
            polars.when(known).then((col("dur_ns") - col("covered_ns")).sum() / 1e6).alias("exposed_ms"),
            col("wait_us").median(),
            col("wire_bytes").median(),
        )
        .join(_skew(events, keys), on=keys, how="left", nulls_equal=True)
        .sort("total_ms", *keys, descending=[True, *[False] * len(keys)], nulls_last=True)
        .select(*_HEADINGS)
    )


def overlapped(trace: Trace) -> tuple[polars.DataFrame, dict[int, Span]]:
    """A row per collective: rank, start_ns, end_ns, dur_ns, collective, bytes, algorithm, axis, wait_us, wire_bytes,
    sequence, covered_ns. And by rank, when its kernels ran.

    `covered_ns`, the time beside kernels, comes from the intervals of the rank's kernels; of a rank without kernels,
    from what the trace itself says, and it is null where that says nothing.
    """
    return trace.once("collectives overlapped", _overlapped)


def _overlapped(trace: Trace) -> tuple[polars.DataFrame, dict[int, Span]]:
    # Tessera numbers collectives alike in all ranks; other tools put launch numbers there, each process its own.
    numbered = trace.metadata.get("source") == "tessera"
    events = (
        trace.events.filter((col("kind") == "collective") & (col("dur_ns") > 0))
        .select(
            col("rank").fill_null(0),
            "start_ns",
            "dur_ns",
            end_ns=col("start_ns") + col("dur_ns"),
            collective=polars.coalesce(col("collective_type").cast(polars.String), kernels.NAME),
            bytes=polars.coalesce("collective_bytes", "bytes"),
            algorithm=col("collective_algorithm").cast(polars.String),
            axis=col("collective_axis").cast(polars.String),
            wait_us="collective_wait_us",
            wire_bytes="collective_wire_bytes",
            sequence=col("correlation") if numbered else polars.lit(None, polars.Int64),
            told_pct="collective_overlap_pct",
        )
        .collect(engine="streaming")
    )
    covered, spans = sweep.overlaps(kernels.kernels(trace), events)
    told = col("told_pct").cast(polars.Float64) / 100 * col("dur_ns")
    swept = polars.Series("swept", covered, dtype=polars.Float64)
    has_kernels = col("rank").is_in(list(spans))
    covered_ns = polars.when(has_kernels).then(swept).otherwise(told)
    return events.with_columns(covered_ns=covered_ns).drop("told_pct"), spans


def _skew(events: polars.DataFrame, keys: list[str]) -> polars.DataFrame:
    """Per kind of collective, the median over its calls of the time between the first and the last arrival, and the
    rank that others waited longest for.
    """
    arrivals = events.filter(col("sequence").is_not_null()).group_by(*keys, "sequence")
    spread = arrivals.agg(
        col("rank").n_unique().alias("ranks"),
        (col("start_ns").max() - col("start_ns").min()).alias("spread_ns"),
        col("rank").sort_by("start_ns").last().alias("last"),
    )
    several = spread.filter(col("ranks") > 1)
    late = (
        several.group_by(*keys, "last").agg(col("spread_ns").sum()).sort("spread_ns", "last", descending=[True, False])
    )
    return (
        several.group_by(keys)
        .agg((col("spread_ns").median() / 1e3).alias("skew_us"))
        .join(late.group_by(keys).agg(late_rank=col("last").first()), on=keys, nulls_equal=True)
    )


def arrivals(events: polars.DataFrame) -> polars.DataFrame:
    """Of what `overlapped` gave, for each call of several ranks (`sequence`, `collective`) and each `rank`, how long
    after the first it came, `late_us`.
    """
    call = ("sequence", "collective")
    numbered = events.filter(col("sequence").is_not_null()).filter(col("rank").n_unique().over(*call) > 1)
    late = (col("start_ns") - col("start_ns").min().over(*call)) / 1e3
    return numbered.select(*call, "rank", "bytes", "start_ns", late_us=late).sort("start_ns", "rank")


def _missing(trace: Trace, table: polars.DataFrame) -> dict[str, str]:
    reasons = {}
    if len(table) and table["algorithm"].null_count() == len(table):
        reasons["algorithm"] = kernels.missing_in_trace(trace, ["collective_algorithm"])["collective_algorithm"]
    if len(table) and table["overlap_pct"].null_count() == len(table):
        reasons["overlap_pct"] = reasons["exposed_ms"] = "the trace has no kernels to compare with"
    if len(table) and table["skew_us"].null_count() == len(table):
        reasons["skew_us"] = reasons["late_rank"] = (
            "needs numbered collectives of several ranks: give the folder with the traces of all"
        )
    for name in ("axis", "wait_us", "wire_bytes"):
        if len(table) and table[name].null_count() == len(table):
            reasons[name] = trace.capability.get(f"collective_{name}", "no collective of this trace tells it")
    return reasons


def _smaller(found: polars.DataFrame, shown: polars.DataFrame) -> list[str]:
    """What is left out for its size, or that there is none."""
    if found.is_empty():
        return ["no collective ran while this was recorded; those of op.all_reduce are recorded"]
    if left_out := len(found) - len(shown):
        largest = max(found["bytes"].fill_null(0).to_list())
        at_most = f"; the largest collective has {largest:,.0f} bytes" if largest else ""
        return [f"{left_out:,} of {len(found):,} collectives are smaller{at_most}"]
    return []


def _notes(trace: Trace, events: polars.DataFrame) -> tuple[str, ...]:
    if events["rank"].n_unique() < 2:
        return ()
    uncertain_us = trace.clocks_us()
    if uncertain_us is None:
        return ("clocks of the ranks: not compared with each other, so the skew may be off by any amount",)
    return (f"clocks of the ranks agree within {uncertain_us:.1f} us: skew below that is none",)


def cells(events: polars.DataFrame) -> polars.DataFrame:
    """What `overlapped` gave by powers of two of bytes (`log2_bytes`) and of microseconds (`log2_us`): `calls`,
    `total_ms`, and `overlap_pct`, the overlap with kernels weighted with time.
    """
    known = events.filter((col("dur_ns") > 0) & col("bytes").is_not_null())
    size = col("bytes").clip(1).log(2).floor().cast(polars.Int32)
    taken = (col("dur_ns") / 1e3).clip(0.001).log(2).floor().cast(polars.Int32)
    weighted = 100 * col("covered_ns").sum() / col("dur_ns").sum()
    return (
        known.with_columns(log2_bytes=size, log2_us=taken)
        .group_by("log2_bytes", "log2_us")
        .agg(
            polars.when(col("covered_ns").null_count() == 0).then(weighted).alias("overlap_pct"),
            calls=polars.len(),
            total_ms=col("dur_ns").sum() / 1e6,
        )
        .sort("log2_bytes", "log2_us")
    )


def _draw(figure: Figure, found: polars.DataFrame) -> None:
    """A heat map: bytes across, duration up, coloured by the overlap with kernels, with the number of calls. Grey:
    nothing to compare with.
    """
    if found.is_empty():
        raise ArgumentError("no collective tells its bytes")
    axes = figure.add_subplot()
    (left, right), (low, high) = ((found[name].min(), found[name].max()) for name in ("log2_bytes", "log2_us"))
    assert isinstance(left, int) and isinstance(right, int) and isinstance(low, int) and isinstance(high, int)
    colors = numpy.full((high - low + 1, right - left + 1), numpy.nan)
    axes.set_facecolor("#eeeeee")
    for row in found.iter_rows(named=True):
        place = row["log2_us"] - low, row["log2_bytes"] - left
        colors[place] = numpy.nan if row["overlap_pct"] is None else row["overlap_pct"]
        dark = row["overlap_pct"] is not None and row["overlap_pct"] < 50
        axes.text(place[1], place[0], f"{row['calls']}", ha="center", va="center", color="white" if dark else "black")
    image = axes.imshow(colors, origin="lower", aspect="auto", vmin=0, vmax=100, cmap="viridis")
    axes.set_xticks(range(right - left + 1), [_bytes(2.0**each) for each in range(left, right + 1)], fontsize=8)
    axes.set_yticks(range(high - low + 1), [f"{2.0**each:g}" for each in range(low, high + 1)], fontsize=8)
    axes.set_xlabel("bytes, from")
    axes.set_ylabel("duration, us, from")
    axes.set_title("Collectives: calls, by bytes and duration", fontsize=11, loc="left")
    figure.colorbar(image, label="overlap with kernels, % of time")


def _bytes(count: float) -> str:
    power = min(int(math.log2(count)) // 10, 4)
    return f"{count / 1024**power:g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
