"""Rows that are alike, by number: what is made of their texts is then made once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import polars
from numpy.typing import NDArray


def numbered(events: polars.DataFrame, keys: Sequence[str]) -> tuple[NDArray[numpy.int64], polars.DataFrame]:
    """Rows that are equal in `keys` get the same number, from 0 on in order of appearance; and what is behind each
    number: its `keys`, and `row`, the first that has it.
    """
    groups = events.select(keys).with_row_index("row").group_by(keys, maintain_order=True).agg("row")
    rows = groups["row"]
    numbers = numpy.empty(len(events), numpy.int64)
    numbers[rows.explode().drop_nulls().to_numpy()] = numpy.repeat(
        numpy.arange(len(groups)), rows.list.len().to_numpy()
    )
    return numbers, groups.with_columns(polars.col("row").list.first())
