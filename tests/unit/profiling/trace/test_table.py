"""The columns of a trace: typed, complete, refused where unknown."""

from __future__ import annotations

import polars
import pytest

from tessera.profiling.trace.table import COLUMNS, frame


def test_columns_that_are_not_given_are_null_and_typed() -> None:
    table = frame({"kind": ["kernel", "mark"], "start_ns": [5, 7]})
    assert table.schema == polars.Schema(COLUMNS)
    assert table["kernel_name"].to_list() == [None, None]
    assert table["start_ns"].to_list() == [5, 7]


def test_a_table_of_no_events_has_all_columns() -> None:
    assert frame({}).schema == polars.Schema(COLUMNS)


def test_a_name_that_is_no_column_is_refused() -> None:
    with pytest.raises(KeyError, match="colour"):
        frame({"colour": ["red"]})
