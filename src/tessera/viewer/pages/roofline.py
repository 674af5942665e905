"""What the page of the roofline shows."""

from __future__ import annotations

import json
from typing import Any, Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import durations, kernels
from tessera.profiling.analyses import roofline as rooflines
from tessera.profiling.analyses.traffic import LEVELS
from tessera.profiling.trace.table import Trace
from tessera.viewer.pages.scope import Parameters, narrowed, seen
from tessera.viewer.pages.tables import table_json
from tessera.viewer.runs import Run

_KEYS: Final = {
    "name": kernels.NAME,
    "flops": col("flops"),
    "bytes": col("bytes"),
    "dtype": col("dtype").fill_null(polars.lit("", polars.Categorical())),
    "workers": col("workers").fill_null(1),
}


COUNTED: Final = "DRAM, counted"
"""The level whose bytes are those of counters, not of the cost model."""


def roofline(run: Run, asked: Parameters) -> dict[str, Any]:
    """`analyses.roofline`, with the roofs of the most workers of any point, the spread of each point's times, and the
    bytes that a call moves by memory level, where the cost model estimates or counters tell them.
    """
    arch = asked.get("arch")

    def made(trace: Trace) -> dict[str, Any]:
        trace = narrowed(trace, asked)
        target = rooflines.target_of(arch) if arch else rooflines.known_target(trace)
        if target is None:
            raise ArgumentError(
                "nothing is known of what the device of this trace can do at most",
                hints=["kernels of GPUs, and traces of other machines without ceilings, need the name of a data sheet"],
            )
        model = rooflines.roofline(trace, target)
        spreads, moved = _spreads(trace), _moved(trace)
        workers = max(model.workers(point) for point in model.points)
        known = target.ceilings
        levels = dict.fromkeys(row.level for row in known.memory if row.workers == workers) if known else ()
        points = []
        for row in model.to_polars().iter_rows(named=True):
            key = tuple(row[name] for name in ("kernel", "flops", "bytes", "dtype", "workers"))
            p10, p90 = spreads.get(key, (row["median_us"], row["median_us"]))
            total_ms, reached = row["median_us"] * row["calls"] / 1e3, row["efficiency_pct"]
            saved_ms = None if reached is None else max(0.0, total_ms * (1 - reached / 100))
            points.append(
                {
                    **row,
                    "p10_us": p10,
                    "p90_us": p90,
                    "total_ms": total_ms,
                    "saved_ms": saved_ms,
                    "levels": moved.get(key),
                }
            )
        return {
            "device": target.name,
            "workers": workers,
            "compute": [
                {"dtype": row.dtype, "gflop_per_s": row.flop_per_s / 1e9}
                for row in (known.compute if known else ())
                if row.workers == workers
            ],
            "memory": [
                {"level": level, "gbps": rooflines.bandwidth(known, level, workers) / 1e9} for level in levels if known
            ],
            "measured": {"source": known.source, "date": known.date} if known else None,
            "points": points,
            "notes": list(model.notes),
            "table": table_json(model.analysis()),
        }

    return run.answer(("roofline", arch, seen(asked)), made)


def _spreads(trace: Trace) -> dict[tuple[Any, ...], tuple[float, float]]:
    """The 10th and 90th percentile of the durations of each kernel and work, in microseconds, as exact as the bins of
    `durations`.
    """
    known = durations.kernel_bins(trace).filter((col("flops") > 0) & (col("bytes") > 0)).rename({"kernel": "name"})
    known = known.with_columns(col("dtype").fill_null(""), col("workers").fill_null(1))
    found = durations.histograms_of(known, list(_KEYS))
    return {key: (each.quantile_ns(0.1) / 1e3, each.quantile_ns(0.9) / 1e3) for key, each in found.items()}


def _moved(trace: Trace) -> dict[tuple[Any, ...], dict[str, float]]:
    """The bytes by memory level of a call of each kernel and work, as the cost model estimates them; those of the
    memory as its controllers counted them, where kernels with at least half of the time have readings: `COUNTED`.
    """
    taken, rate = col("dur_ns"), (col("dram_read_gbps") + col("dram_write_gbps")).cast(polars.Float64)
    known_ns = taken.filter(rate.is_not_null()).sum()
    rates = (rate * taken).sum() / known_ns * taken.mean()  # GB/s are bytes a nanosecond
    found = (
        _known(trace)
        .group_by([each.alias(name) for name, each in _KEYS.items()])
        .agg(
            traffic=col("traffic").cast(polars.String).drop_nulls().first(),
            counted=polars.when(2 * known_ns >= taken.sum()).then(rates),
        )
        .filter(polars.any_horizontal(col("traffic", "counted").is_not_null()))
        .collect(engine="streaming")
        .with_columns(col("name", "dtype").cast(polars.String))
    )
    moved = {}
    for *key, traffic, counted in found.iter_rows():
        levels = json.loads(traffic) if traffic is not None else {}
        told = {level: levels[level] for level in LEVELS if levels.get(level)}
        moved[tuple(key)] = {**told, **({COUNTED: counted} if counted else {})}
    return moved


def _known(trace: Trace) -> polars.LazyFrame:
    return kernels.kernels(trace).filter((col("flops") > 0) & (col("bytes") > 0))
