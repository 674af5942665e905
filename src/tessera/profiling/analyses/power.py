"""Power: energy, peaks, crest factor and throttling, from samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars
from polars import col

from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.presentation.result import Analysis
from tessera.profiling.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS: Final = {
    "rank": "Rank",
    "device": "Device",
    "samples": "Samples",
    "span_s": "Span(s)",
    "mean_w": "Mean(W)",
    "peak_w": "Peak(W)",
    "crest_factor": "Crest factor",
    "energy_j": "Energy(J)",
    "peak_c": "Peak(°C)",
    "throttled_pct": "Throttled(%)",
    "throttle_reasons": "Reasons",
}
_NOTES: Final = (
    "crest factor: the peak over the root mean square; both and the mean are weighted with the time that samples stand "
    "for",
    "throttled: the share of the time in which the device named a reason for lower clocks",
)
_COLUMNS: Final = {
    "power_w": ("mean_w", "peak_w", "crest_factor", "energy_j"),
    "temp_c": ("peak_c",),
    "throttle_reason": ("throttled_pct", "throttle_reasons"),
}
"""What of the table comes from which column of the trace."""


def power(trace: Trace) -> Analysis:
    """A row per rank and device. A sample stands for the time until the next one of its device."""
    table = _table(samples(trace))
    reasons = kernels.missing_in_trace(trace, _COLUMNS) if table.is_empty() else _missing(trace, table)
    return Analysis(
        title="Power",
        table=table.select(*_HEADINGS),
        headings=_HEADINGS,
        notes=_NOTES if len(table) else ("no sample of power, temperature or throttling in this trace",),
        missing=reasons,
        optional=("samples", "span_s", "mean_w", "peak_c"),
        drawing=lambda figure, _: _draw(figure, samples(trace)),
    )


def samples(trace: Trace) -> polars.DataFrame:
    """Sensor readings by rank, device and time: rank, device, start_ns, hold_ns (0 for the last one of a device),
    power_w, temp_c, throttle_reason. What a row does not say keeps the value before.
    """
    named = {name: _reading(name) for name in ("power_w", "temp_c")}
    throttle = col("throttle_reason").cast(polars.String)
    keys = ["rank", "device"]
    return (
        trace.events.filter(col("kind") == "sample")
        .select(col("rank").fill_null(0), col("device").cast(polars.String), "start_ns", throttle, **named)
        .filter(polars.any_horizontal(col("power_w", "temp_c", "throttle_reason").is_not_null()))
        .group_by(*keys, "start_ns")
        .agg(col("power_w", "temp_c", "throttle_reason").drop_nulls().last())
        .sort(*keys, "start_ns", nulls_last=True)
        .with_columns(
            col("power_w", "temp_c", "throttle_reason").forward_fill().over(keys),
            hold_ns=col("start_ns").diff().shift(-1).over(keys).fill_null(0),
        )
        .collect(engine="streaming")
    )


def _reading(name: str) -> polars.Expr:
    """A sensor's column, or the value of a sample of that name."""
    return polars.coalesce(
        col(name).cast(polars.Float64), polars.when(col("kernel_name").cast(polars.String) == name).then("value")
    )


def _table(found: polars.DataFrame) -> polars.DataFrame:
    held = col("hold_ns") * col("power_w").is_not_null()
    hold = held.sum()
    mean = (col("power_w") * held).sum() / hold
    rms = ((col("power_w") ** 2 * held).sum() / hold).sqrt()
    throttled = ~col("throttle_reason").fill_null("").is_in(["", "none"])
    reported = (col("hold_ns") * col("throttle_reason").is_not_null()).sum()
    return (
        found.group_by("rank", "device")
        .agg(
            polars.len().alias("samples"),
            (col("hold_ns").sum() / 1e9).alias("span_s"),
            polars.when(hold > 0).then(mean).alias("mean_w"),
            col("power_w").max().alias("peak_w"),
            polars.when(hold > 0).then(col("power_w").max() / rms).alias("crest_factor"),
            polars.when(hold > 0).then((col("power_w") * held).sum() / 1e9).alias("energy_j"),
            col("temp_c").max().alias("peak_c"),
            polars.when(reported > 0).then(100 * (col("hold_ns") * throttled).sum() / reported).alias("throttled_pct"),
            polars.when(col("throttle_reason").is_not_null().any())
            .then(col("throttle_reason").filter(throttled).unique().sort().str.join(", "))
            .alias("throttle_reasons"),
        )
        .sort("rank", "device", nulls_last=True)
    )


def _missing(trace: Trace, table: polars.DataFrame) -> dict[str, str]:
    absent = [name for name, made in _COLUMNS.items() if table[made[0]].null_count() == len(table)]
    reasons = kernels.missing_in_trace(trace, absent)
    return {column: reasons[name] for name in absent for column in _COLUMNS[name]}


def _draw(figure: Figure, found: polars.DataFrame) -> None:
    """Power over time, a line per device."""
    axes = figure.add_subplot()
    for (rank, device), rows in found.group_by("rank", "device", maintain_order=True):
        seconds = (rows["start_ns"] - found["start_ns"].min()) / 1e9
        axes.step(seconds.to_list(), rows["power_w"].to_list(), where="post", label=f"rank {rank} {device or ''}")
    axes.set_xlabel("time, s")
    axes.set_ylabel("power, W")
    axes.set_title("Power", fontsize=11, loc="left")
    axes.legend(fontsize=8, frameon=False)
