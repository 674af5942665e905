"""docs/record-schema.md: its table names the columns that there are, in their order, with their types."""

from __future__ import annotations

import re

import polars

from tessera.profiling.trace.table import COLUMNS
from tests.docs.snippets import ROOT

TYPES = {
    polars.Int32: "int32",
    polars.Int64: "int64",
    polars.Float32: "float32",
    polars.Float64: "float64",
    polars.Categorical: "text",
    polars.Enum: "enum",
}


def test_the_page_names_every_column_in_order_with_its_type() -> None:
    page = (ROOT / "docs" / "record-schema.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \| (\w+) \|", page, re.MULTILINE)
    named = [(name, kind) for names, kind in rows for name in re.findall(r"`(\w+)`", names)]
    assert named == [(name, TYPES[polars.Series([], dtype=kind).dtype.base_type()]) for name, kind in COLUMNS.items()]
