"""What got slower from one trace to another, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.durations import Histogram, Ratio, histograms, rank_test, ratio_of
from tessera.profiling.analyses.presentation import result
from tessera.profiling.analyses.presentation.result import Analysis, cell
from tessera.profiling.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS: Final = {
    "name": "Event",
    "work": "Work",
    "calls_a": "Calls a",
    "calls_b": "Calls b",
    "median_a_us": "Median a(us)",
    "median_b_us": "Median b(us)",
    "ratio": "b/a",
    "low": "from",
    "high": "to",
    "p_value": "p",
    "lost_ms": "b-a(ms)",
    "verdict": "Verdict",
}
_SCHEMA: Final = {
    "name": polars.String,
    "work": polars.String,
    "calls_a": polars.Int64,
    "calls_b": polars.Int64,
    "median_a_us": polars.Float64,
    "median_b_us": polars.Float64,
    "ratio": polars.Float64,
    "low": polars.Float64,
    "high": polars.Float64,
    "p_value": polars.Float64,
    "lost_ms": polars.Float64,
    "verdict": polars.String,
}
_KINDS: Final = ("kernel", "operator", "collective", "memcpy")
_KEYS: Final = ("name", "dtype", "flops", "bytes")
_COLORS: Final = {"slower": "#c8553d", "faster": "#3c8d53"}


def compare(a: Trace, b: Trace, confidence: float, min_change_pct: float) -> Analysis:
    """A row per kernel, operator, collective or copy and its work (dtype, FLOPs, bytes), what lost most time first.

    The ratio is `durations.ratio_of`'s; its intervals hold for all rows together with the confidence asked for
    (Bonferroni).
    """
    if not 0.5 <= confidence < 1:
        raise ArgumentError(f"confidence={confidence!r}", hints=["0.5 to below 1: 0.95 is 95 %"])
    if min_change_pct < 0:
        raise ArgumentError(f"min_change_pct={min_change_pct!r}", hints=["percent, 0 or more"])
    first, second = _durations(a), _durations(b)
    both = len(first.keys() & second.keys())
    each = 1 - (1 - confidence) / max(both, 1)
    rows = [_row(key, first.get(key), second.get(key), each, min_change_pct) for key in first | second]
    table = polars.DataFrame(rows, schema=_SCHEMA, orient="row").sort(
        "lost_ms", "name", descending=[True, False], nulls_last=True
    )
    counted = dict(table["verdict"].value_counts().iter_rows())
    return Analysis(
        title="b compared with a",
        table=table,
        headings=_HEADINGS,
        notes=(
            ", ".join(f"{counted[verdict]} {verdict}" for verdict in sorted(counted)) or "no events with a duration",
            f"b/a: the median ratio of calls; from, to: its interval, {100 * confidence:g} % for all rows together",
            f"slower, faster: the interval excludes 1 and the ratio is {min_change_pct:g} % away from it or more",
            "p: Mann-Whitney, of the row alone",
        ),
        drawing=lambda figure, rows: _draw(figure, rows, [_name_of(trace) for trace in (a, b)]),
        optional=("p_value", "low", "high", "calls_b", "calls_a", "median_b_us", "median_a_us"),
    )


def _durations(trace: Trace) -> dict[tuple[object, ...], Histogram]:
    timed = trace.events.filter(col("kind").is_in(_KINDS) & (col("dur_ns") > 0))
    return histograms(timed.with_columns(name=kernels.NAME), _KEYS)


def _row(
    key: tuple[object, ...], a: Histogram | None, b: Histogram | None, confidence: float, min_change_pct: float
) -> tuple[Any, ...]:
    name, dtype, flops, nbytes = key
    amounts = (value if isinstance(value, int | float) else None for value in (flops, nbytes))
    work = ", ".join(filter(None, [str(dtype or ""), result.work(*amounts)]))
    if a is None or b is None:
        known, verdict = (b, "only in b") if a is None else (a, "only in a")
        assert known is not None
        calls = (known.calls if each is known else 0 for each in (a, b))
        medians = (known.median_ns / 1e3 if each is known else None for each in (a, b))
        return name, work, *calls, *medians, None, None, None, None, None, verdict
    ratio = ratio_of(b, a, confidence)
    estimate, low, high = (ratio.estimate, ratio.low, ratio.high) if ratio else (b.median_ns / a.median_ns, None, None)
    lost_ms = (b.median_ns - a.median_ns) * min(a.calls, b.calls) / 1e6
    medians_us = a.median_ns / 1e3, b.median_ns / 1e3
    verdict = _verdict(ratio, min_change_pct)
    return name, work, a.calls, b.calls, *medians_us, estimate, low, high, rank_test(a, b), lost_ms, verdict


def _verdict(ratio: Ratio | None, min_change_pct: float) -> str:
    if ratio is None:
        return "too few calls"
    if ratio.low <= 1 <= ratio.high or abs(ratio.estimate - 1) < min_change_pct / 100:
        return "within noise"
    return "slower" if ratio.estimate > 1 else "faster"


def _name_of(trace: Trace) -> str:
    """When and on what a trace was recorded, "" where it does not say."""
    started = trace.metadata.get("start_unix_ns")
    when = datetime.fromtimestamp(started / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S") if started else ""
    return ", ".join(filter(None, [when, str((trace.metadata.get("target") or {}).get("name") or "")]))


def _draw(figure: Figure, rows: polars.DataFrame, names: Sequence[str]) -> None:
    """The ratio of each row with its interval, on a logarithmic axis, and the milliseconds lost; grey is within noise.
    `names` are those of the two runs.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    shown = rows.filter(col("low").is_not_null()).head(30)
    axes = figure.add_subplot()
    for place, row in enumerate(shown.iter_rows(named=True)):
        color = _COLORS.get(row["verdict"], "#8a8a8a")
        axes.plot([row["low"], row["high"]], [place, place], color=color, linewidth=2)
        axes.plot([row["ratio"]], [place], marker="o", color=color)
        lost = f"{cell(row['lost_ms'])} ms"
        axes.annotate(lost, (row["high"], place), (4, -2), textcoords="offset points", fontsize=7)
    axes.axvline(1, color="#333333", linewidth=0.8)
    labels = [", ".join(filter(None, map(cell, each))) for each in shown.select("name", "work").iter_rows()]
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"duration, b / a\na: {names[0]}\nb: {names[1]}".replace("\na: \nb: ", ""))
    axes.set_title("What got slower", fontsize=11, loc="left")
