"""The memory breakdown of kernels: bytes by memory level, counted where the trace has counters, else as the compiler
estimates them, and scratch memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import polars
from polars import col

from tessera.errors import ProfileError
from tessera.profiling.analyses import kernels
from tessera.profiling.counters.traffic import LEVELS as MISSES
from tessera.profiling.counters.traffic import LINE_BYTES
from tessera.profiling.recording.facts import SCRATCH
from tessera.profiling.trace.table import Trace

LEVELS: Final = {"L1": "l1_mb", "L2": "l2_mb", "L3": "l3_mb", "DRAM": "dram_mb"}
"""Memory levels of `StepFacts.traffic`, and their columns in `estimated`."""
COLUMNS: Final = (*LEVELS.values(), "scratch_mb")
_COUNTED: Final = (("L3", "l3_mb"), ("DRAM", "dram_mb"))
"""Levels that counters tell of, and their columns."""
_RANK: Final = col("rank").fill_null(0)
_COLUMNS_COUNTED: Final = tuple(f"{column} counted" for _, column in _COUNTED)
MB: Final = 1e6


def estimated(trace: Trace) -> polars.DataFrame:
    """A row per kernel `name`, in MB: what all of its calls move to and from each level by the cost model, null where a
    call has no estimate, and the most scratch memory that a call uses. Raises ProfileError for what is no estimate.
    """
    calls = (
        kernels.kernels(trace)
        .group_by(kernels.NAME.alias("name"), "traffic")
        .agg(polars.len().alias("calls"))
        .collect(engine="streaming")
        .with_columns(col("name", "traffic").cast(polars.String))
    )
    told = {text: _parsed(text) for text in calls["traffic"].unique() if text is not None}
    nothing: dict[str, float] = {}
    moved = [told.get(text, nothing) for text in calls["traffic"]]
    levels = {column: [each.get(level) for each in moved] for level, column in LEVELS.items()}
    scratch = [each.get(SCRATCH) for each in moved]
    types = dict.fromkeys(COLUMNS, polars.Float64())
    wide = calls.hstack(polars.DataFrame({**levels, "scratch_mb": scratch}, schema_overrides=types))
    total = [
        polars.when(col(column).null_count() == 0).then((col(column) * col("calls")).sum() / MB).alias(column)
        for column in LEVELS.values()
    ]
    return wide.group_by("name").agg(*total, col("scratch_mb").max() / MB)


def breakdown(trace: Trace) -> polars.DataFrame:
    """A row per kernel `name` with `COLUMNS` in MB, counted bytes in the place of estimated ones where there are any,
    and `traffic_by`: "estimate", or "counters: DRAM" with the levels that were counted; null where nothing is known.
    """
    found = estimated(trace).join(counted(trace), on="name", how="left")
    known = [polars.when(col(f"{column} counted").is_not_null()).then(polars.lit(level)) for level, column in _COUNTED]
    levels = polars.concat_str(known, separator=", ", ignore_nulls=True)
    told = polars.any_horizontal(col(column).is_not_null() for column in COLUMNS)
    by = polars.when(levels != "").then(polars.lit("counters: ") + levels)
    return found.select(
        "name",
        *(polars.coalesce(f"{column} counted", column).alias(column) for _, column in _COUNTED),
        "l1_mb",
        "l2_mb",
        "scratch_mb",
        traffic_by=by.when(told).then(polars.lit("estimate")),
    )


def counted(trace: Trace) -> polars.DataFrame:
    """A row per kernel `name`, in MB: `l3_mb counted` and `dram_mb counted`, by counters that were read while its calls
    ran, for all of its calls; null where calls that have such readings are less than half of its time.

    Memory controllers come before the process' own misses of the last cache, which leave out what was fetched ahead.
    """
    rates = {level: _rates(trace, [each.name for each in events]) for level, events in MISSES.items()}
    if {"dram_read_gbps", "dram_write_gbps"} & trace.capability.keys() and not any(map(len, rates.values())):
        return polars.DataFrame(schema={"name": polars.String} | dict.fromkeys(_COLUMNS_COUNTED, polars.Float64))
    # GB/s are bytes a nanosecond.
    read, written = (col(name).cast(polars.Float64) for name in ("dram_read_gbps", "dram_write_gbps"))
    calls = kernels.kernels(trace).select(
        _RANK,
        "dur_ns",
        col("device").cast(polars.String).fill_null("cpu"),
        end_ns=col("start_ns") + col("dur_ns"),
        name=kernels.NAME.cast(polars.String),
        rate=read + written,
    )
    found = calls.group_by("name").agg(col("dur_ns").sum().alias("all_ns")).collect(engine="streaming")
    found = _of_all(found, _sampled(calls, rates["L3"]), "l3_mb counted")
    found = _of_all(found, _sampled(calls, rates["DRAM"]), "missed")
    found = _of_all(found, calls, "controlled")
    return found.select("name", "l3_mb counted", polars.coalesce("controlled", "missed").alias("dram_mb counted"))


def _of_all(times: polars.DataFrame, calls: polars.LazyFrame, column: str) -> polars.DataFrame:
    """`times` with the megabytes of all calls of a kernel, by the mean `rate` of those that have one."""
    rated = calls.filter(col("rate").is_not_null()).group_by("name")
    sums = rated.agg(col("dur_ns").sum().alias("rated_ns"), (col("rate") * col("dur_ns")).sum().alias("moved"))
    found = times.join(sums.collect(engine="streaming"), on="name", how="left")
    all_mb = col("moved") / col("rated_ns") * col("all_ns") / MB
    return found.with_columns(
        polars.when(2 * col("rated_ns") >= col("all_ns")).then(all_mb).alias(column),
    ).drop("rated_ns", "moved")


def _sampled(calls: polars.LazyFrame, rates: polars.DataFrame) -> polars.LazyFrame:
    """The calls on CPUs that lasted from one sample of their process to the next, with the `rate` of the first sample
    at their end or after.
    """
    bare = calls.filter(col("device") == "cpu").drop("rate")
    if rates.is_empty():
        return bare.with_columns(rate=polars.lit(None, polars.Float64)).head(0)
    long = bare.filter(col("dur_ns") >= rates["since_ns"].min()).sort("end_ns")
    joined = long.join_asof(
        rates.lazy(), left_on="end_ns", right_on="at_ns", by="rank", strategy="forward", check_sortedness=False
    )
    return joined.filter(col("dur_ns") >= col("since_ns"))


def _rates(trace: Trace, events: Sequence[str]) -> polars.DataFrame:
    """Bytes a nanosecond (`rate`) that events of cache lines stand for, by the rank and the instant of the sample
    (`at_ns`), and for how long it speaks (`since_ns`).
    """
    taken = (
        trace.events.filter((col("kind") == "sample") & col("kernel_name").cast(polars.String).is_in(events))
        .group_by(_RANK, col("start_ns").alias("at_ns"))
        .agg(polars.len().alias("told"), (LINE_BYTES * col("value").sum() / 1e9).alias("rate"))
        .filter(col("told") == len(events))
        .sort("at_ns")
        .collect(engine="streaming")
    )
    return taken.select("rank", "at_ns", "rate", since_ns=col("at_ns").diff().over("rank")).drop_nulls()


def _parsed(text: str) -> dict[str, float]:
    try:
        return {str(level): float(nbytes) for level, nbytes in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ProfileError(f"the traffic of a kernel is no object of numbers: {text[:60]!r}") from error
