"""Rows of analyses as plain JSON: what a page shows is what the analysis says, to the digit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars

from tessera.profiling.analyses.presentation.result import Analysis, by_reason


def table_json(found: Analysis) -> dict[str, Any]:
    """An analysis: `title`, `columns` (name, heading, type), `rows`, `notes`, and `missing`, the columns without any
    value by reason. Columns that are missing, and those that are not printed, are left out.
    """
    shown = [name for name in found.headings if name not in found.missing]
    return {
        "title": found.title,
        "columns": [_column(name, found.headings[name], found.table.schema[name]) for name in shown],
        "rows": [plain(row) for row in found.table.select(shown).iter_rows()],
        "notes": list(found.notes),
        "missing": {
            why: [found.headings.get(name, name) for name in names] for why, names in by_reason(found.missing).items()
        },
    }


def _column(name: str, heading: str, kind: polars.DataType) -> dict[str, Any]:
    shown = "float" if kind.is_float() else "whole" if kind.is_integer() else "text"
    return {"name": name, "heading": heading, "type": shown}


def plain(row: Sequence[Any]) -> list[Any]:
    """Values of a row as JSON has them: numbers that it has not are null."""
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in row]
