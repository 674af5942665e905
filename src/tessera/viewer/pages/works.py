"""What slices of a timeline are coloured by, and what launched them."""

from __future__ import annotations

from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import col

from tessera.profiling.analyses import roofline
from tessera.profiling.report.bounds import DeviceBounds
from tessera.profiling.trace.grouping import numbered
from tessera.profiling.trace.table import Trace

KEYS: Final = ("dtype", "region", "flops", "bytes", "workers")
"""Columns that tell one work from another."""
MOST_WORKS: Final = 10_000
"""Works that are told apart; what comes first in time is."""

Integers = NDArray[numpy.int64]


def works(events: polars.DataFrame, trace: Trace) -> tuple[Integers, list[dict[str, Any]]]:
    """By event the number of its work; and of each work `dtype`, `region` and `least_us`, the least time that the
    ceilings which the trace knows allow it, None where there are none. The last of `MOST_WORKS` stands for all others.
    """
    keys = ["kind", "device", *KEYS]
    numbers, found = numbered(events, keys)
    target = roofline.known_target(trace)
    ceilings = None if target is None else target.ceilings
    bounds = None if target is None or ceilings is None else DeviceBounds(ceilings, target.memory)
    told = [_told(row, bounds) for row in found.head(MOST_WORKS).iter_rows(named=True)]
    if len(found) > MOST_WORKS:
        told[-1] = {"dtype": "", "region": "", "least_us": None}
    return numpy.minimum(numbers, MOST_WORKS - 1), told


def _told(row: dict[str, Any], bounds: DeviceBounds | None) -> dict[str, Any]:
    least = None
    if bounds is not None and row["kind"] == "kernel" and (row["device"] or "cpu") == "cpu":
        least = bounds.of(row["flops"] or 0.0, row["bytes"] or 0.0, row["dtype"] or "", row["workers"] or 1)
    least_us = None if least is None else least.seconds * 1e6
    return {"dtype": row["dtype"] or "", "region": row["region"] or "", "least_us": least_us}


def launches(events: polars.DataFrame, order: Integers) -> Integers | None:
    """By slice of an `order` of the events the number of the slice that launched it, from 1 on, or 0: of those of a
    correlation the first. None where nothing was launched.
    """
    told = numpy.sort(events["correlation"].drop_nulls().to_numpy())
    if not (told[1:] == told[:-1]).any():  # which is told much faster than what launched what
        return None
    linked = events.select("rank", "correlation", "start_ns", row=polars.int_range(polars.len()))
    linked = linked.filter(col("correlation").is_not_null() & col("correlation").is_duplicated())
    linked = linked.sort("start_ns", maintain_order=True)
    first = linked.with_columns(launch=col("row").first().over("rank", "correlation")).filter(
        col("launch") != col("row")
    )
    if first.is_empty():
        return None
    place = numpy.empty(len(order), numpy.int64)
    place[order] = numpy.arange(len(order))
    made = numpy.zeros(len(order), numpy.int64)
    made[place[first["row"].to_numpy()]] = 1 + place[first["launch"].to_numpy()]
    return made
