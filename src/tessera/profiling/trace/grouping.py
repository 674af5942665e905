"""Rows that are alike, by number: what is made of their texts is then made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy
import polars
from numpy.typing import NDArray

_LANE: Final = ("rank", "pid", "device", "thread_id", "stream_id", "stream_name")


def numbered(events: polars.DataFrame, keys: Sequence[str]) -> tuple[NDArray[numpy.int64], polars.DataFrame]:
    """Rows that are equal in `keys` get the same number, from 0 on in order of appearance; and what is behind each
    number: its `keys`, and `row`, the first that has it.
    """
    # Most columns have one value, and grouping by these, too, takes as long again for each.
    varying = [name for name in keys if not _is_constant(events[name])]
    if not varying:
        first = events.head(1).select(*keys, row=polars.lit(0, polars.UInt32))
        return numpy.zeros(len(events), numpy.int64), first
    groups = events.select(varying).with_row_index("row").group_by(varying, maintain_order=True).agg("row")
    rows = groups["row"]
    numbers = numpy.empty(len(events), numpy.int64)
    numbers[rows.explode().drop_nulls().to_numpy()] = numpy.repeat(
        numpy.arange(len(groups)), rows.list.len().to_numpy()
    )
    first_rows = rows.list.first()
    return numbers, events.select(list(keys))[first_rows].with_columns(first_rows.alias("row"))


def _is_constant(values: polars.Series) -> bool:
    """Whether there are values, and all are equal or all null."""
    codes = values.to_physical()
    return len(codes) > 0 and bool(codes.eq_missing(codes[:1]).all())


def by_lane(events: polars.DataFrame) -> tuple[NDArray[numpy.int64], polars.DataFrame]:
    """By event the number of its lane, a thread of the host or a stream of a device, from 0 on in order of appearance;
    and what is behind each number: `rank`, `pid`, `device`, `thread_id` (null on other devices than CPUs), `stream_id`
    (0 for what the program ran itself), `stream_name`.
    """
    device = polars.col("device").fill_null(polars.lit("cpu", polars.Categorical()))
    thread = polars.when(device.cat.starts_with("cpu")).then("thread_id").alias("thread_id")
    return numbered(events.with_columns(device, thread, polars.col("stream_id").fill_null(0)), _LANE)
