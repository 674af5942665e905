"""What pages ask of runs, as plain JSON: one function for each question, the same for the server and the one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import polars
from polars import col

from tessera.profiling.analyses import (
    advise,
    collectives,
    divergence,
    kernels,
    memory,
    operations,
    power,
    stalls,
)
from tessera.profiling.analyses import compare as comparison
from tessera.profiling.analyses import roofline as rooflines
from tessera.profiling.analyses.presentation.result import Analysis, by_reason
from tessera.profiling.trace.reading import examined
from tessera.profiling.trace.table import Trace
from tessera.viewer.pages import columns, overview
from tessera.viewer.pages import flame as stacked
from tessera.viewer.pages.roofline import roofline
from tessera.viewer.pages.scope import Parameters, narrowed, seen, window
from tessera.viewer.pages.tables import plain, table_json
from tessera.viewer.runs import Run

_CONFIDENCE: Final = 0.95
_LEAST_CHANGE_PCT: Final = 1.0
_DIVERGENCE: Final = 0.2
_MOST_POINTS: Final = 2000
_MOST_REGIONS: Final = 200
_MOST_ARRIVALS: Final = 2000
_HIDDEN: Final = ("plans", "totals", "thread_names", "ceilings")


def meta(run: Run, _: Parameters) -> dict[str, Any]:
    """What the trace says of itself: metadata without what only programs need, reasons of what is missing, ceilings."""

    def made(trace: Trace) -> dict[str, Any]:
        told = {name: value for name, value in trace.metadata.items() if name not in _HIDDEN}
        known = trace.metadata.get("ceilings") or {}
        offsets = [about.get("uncertainty_ns") for about in trace.metadata.get("ranks", {}).values()]
        return {
            "name": run.name,
            "metadata": told,
            "missing": by_reason(trace.capability),
            "ceilings": {"date": known.get("date"), "source": known.get("source")} if known else None,
            "clock_uncertainty_us": max((each / 1e3 for each in offsets if each is not None), default=None),
        }

    return run.answer("meta", made)


def whole(run: Run, asked: Parameters) -> dict[str, Any]:
    """Where the time went; see `overview`."""
    return run.answer(("overview", window(asked)), lambda trace: overview.overview(trace, window(asked)))


def kernel_table(run: Run, asked: Parameters) -> dict[str, Any]:
    """`analyses.operations` of what `narrowed` leaves, with its `regions`; or the kernels in groups `by` something."""
    by = asked.get("by") or None

    def made(trace: Trace) -> dict[str, Any]:
        found = narrowed(trace, asked)
        if by is not None:
            return {**table_json(_grouped(found, by)), "regions": _regions(trace)}
        told = operations.operations(found, rooflines.known_target(trace))
        return {**table_json(told), "regions": _regions(trace)}

    return run.answer(("kernels", by, seen(asked)), made)


def _grouped(trace: Trace, by: str) -> Analysis:
    headings = {"calls": "Calls", "total_ms": "Total(ms)", "share_pct": "Share(%)", "gflop_per_s": "GFLOP/s"}
    rates = {"gflop_per_s": col("flops") / col("total_ms") / 1e6, "achieved_gbps": col("bytes") / col("total_ms") / 1e6}
    table = kernels.grouped(trace, by, ()).with_columns(**rates)
    shown = {by: by.capitalize(), **headings, "achieved_gbps": "GB/s"}
    missing = kernels.missing(trace, table, ["achieved_gbps"])
    nameless = len(table) and table[by].null_count() == len(table)
    notes = [_UNGROUPED[by]] if nameless and by in _UNGROUPED else []
    rest = table.slice(operations.MOST_ROWS)
    if len(rest):
        total, share = (f"{rest[name].sum():,.4g}" for name in ("total_ms", "share_pct"))
        notes.append(f"{len(rest):,} more groups take {total} ms, {share} %")
    table = table.head(operations.MOST_ROWS)
    return Analysis(f"Kernels by {by}", table, shown, notes=tuple(notes), missing=missing)


_UNGROUPED: Final = {
    "shape": "no shapes were recorded: record_shapes=True keeps them",
    "line": "no Python stacks were recorded: with_stack=True keeps those that made kernels",
}
"""Why no kernel has a group of some kinds."""


def _regions(trace: Trace) -> list[str]:
    """The regions that kernels ran in, the first `_MOST_REGIONS` of them."""
    return sorted(filter(None, kernels.whereabouts(trace).regions))[:_MOST_REGIONS]


def compared(a: Run, b: Run) -> dict[str, Any]:
    """`analyses.compare` of two runs, and what differs between their machines."""
    second = b.trace()

    def made(first: Trace) -> dict[str, Any]:
        with examined(b.name, second):
            found = table_json(comparison.compare(first, second, _CONFIDENCE, _LEAST_CHANGE_PCT))
        return {**found, "differences": _differences(first.metadata, second.metadata)}

    return a.answer(("compare", b, b.reads), made)


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What makes two runs hard to compare, as sentences."""
    told = []
    for what, read in _COMPARABLE.items():
        first, second = read(a), read(b)
        if first != second:
            told.append(f"{what}: a has {first or 'none'}, b has {second or 'none'}")
    return told


_COMPARABLE: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "device": lambda told: (told.get("target") or {}).get("name"),
    "cores": lambda told: (told.get("target") or {}).get("cores"),
    "hosts": lambda told: ", ".join(sorted({str(each.get("host")) for each in told.get("ranks", {}).values()})),
    "ceilings": lambda told: (told.get("ceilings") or {}).get("date"),
    "profiler": lambda told: told.get("source"),
}


def heat(run: Run, asked: Parameters) -> dict[str, Any]:
    """`collectives.cells`; and `arrivals`: of each call of several ranks how late each came, in microseconds, with
    `clocks_us`, below which that says nothing.
    """

    def made(trace: Trace) -> dict[str, Any]:
        events = collectives.overlapped(narrowed(trace, asked))[0]
        cells = collectives.cells(events)
        late = collectives.arrivals(events)
        return {
            "cells": [dict(zip(row, plain(list(row.values())), strict=True)) for row in cells.to_dicts()],
            "arrivals": late.head(_MOST_ARRIVALS).to_dicts(),
            "arrivals_total": len(late),
            "clocks_us": trace.clocks_us(),
        }

    return run.answer(("heat", seen(asked)), made)


def flame(run: Run, asked: Parameters) -> dict[str, Any]:
    """`flame.stacks`."""
    return run.answer(("flame", seen(asked)), lambda trace: stacked.stacks(narrowed(trace, asked)))


def series(run: Run, asked: Parameters) -> dict[str, Any]:
    """Counters and samples over time: of each name and device at most `_MOST_POINTS` points (nanoseconds, value), of
    more the least and the largest of each few.
    """

    def made(trace: Trace) -> dict[str, Any]:
        texts = [col(name).cast(polars.String) for name in ("kind", "kernel_name", "device", "unit")]
        is_value = col("kind").is_in(["counter", "sample"]) & col("value").is_finite() & col("stack").is_null()
        found = narrowed(trace, asked).events.filter(is_value)
        read = found.select(*texts, "start_ns", "value").sort("start_ns").collect(engine="streaming")
        told = []
        for (kind, name, device, unit), own in read.group_by(
            "kind", "kernel_name", "device", "unit", maintain_order=True
        ):
            shown = _extremes(own) if len(own) > _MOST_POINTS else own
            told.append(
                {
                    "kind": kind,
                    "name": name,
                    "device": device,
                    "unit": unit or "",
                    "at": shown["start_ns"].to_list(),
                    "values": shown["value"].to_list(),
                    "total": len(own),
                }
            )
        return {"series": sorted(told, key=lambda each: [str(each[key]) for key in ("kind", "name", "device")])}

    return run.answer(("series", seen(asked)), made)


def _extremes(values: polars.DataFrame) -> polars.DataFrame:
    step = -(-2 * len(values) // _MOST_POINTS)
    groups = values.select("start_ns", "value").group_by(polars.int_range(polars.len()) // step, maintain_order=True)
    least, largest = (groups.agg(col("start_ns", "value").sort_by("value").get(at)) for at in (0, -1))
    return polars.concat([least, largest]).unique().sort("start_ns")


def _analysis(name: str, of: Callable[[Trace], Any]) -> Callable[[Run, Parameters], dict[str, Any]]:
    def answer(run: Run, asked: Parameters) -> dict[str, Any]:
        return run.answer((name, seen(asked)), lambda trace: table_json(of(narrowed(trace, asked))))

    return answer


def slices(run: Run, asked: Parameters) -> tuple[bytes, columns.Integers]:
    """`columns.packed` of a run, or of a window of it."""
    span = window(asked)
    return run.answer(("columns", span), lambda trace: columns.packed(trace, window=span))


ANSWERS: Final[Mapping[str, Callable[[Run, Parameters], dict[str, Any]]]] = {
    "meta": meta,
    "overview": whole,
    "kernels": kernel_table,
    "roofline": roofline,
    "heat": heat,
    "series": series,
    "flame": flame,
    "advise": _analysis("advise", lambda trace: advise.advise(trace, rooflines.known_target(trace))),
    "stalls": _analysis("stalls", lambda trace: stalls.stalls(trace, "kernel")),
    "divergence": _analysis("divergence", lambda trace: divergence.divergence(trace, _DIVERGENCE)),
    "memory": _analysis("memory", memory.memory),
    "collectives": _analysis("collectives", lambda trace: collectives.collectives(trace, 0)),
    "power": _analysis("power", power.power),
}
"""Question -> the function that answers it for a run."""
