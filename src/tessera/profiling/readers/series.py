"""The values of counter events (phase "C"), which hold numbers by names that nobody knows before."""

from __future__ import annotations

import json
from typing import Any, Final

import polars
from polars import col

_VALUES: Final[dict[str, Any]] = {
    "place": polars.UInt32(),
    "part": polars.String(),
    "unit": polars.String(),
    "value": polars.Float64(),
}


def with_values(rows: polars.DataFrame) -> polars.DataFrame:
    """Events with `value` and `unit` instead of `series`, the arguments of counters as JSON: a row for each number.

    The name of a single number is taken for its unit, as Tessera writes it; several name parts of their event.
    """
    counted = rows.filter(col("series").is_not_null())
    if counted.is_empty():
        return rows.drop("series")
    read = [(place, *number) for place, text in enumerate(counted["series"]) for number in _numbers(json.loads(text))]
    values = polars.DataFrame(read, _VALUES, orient="row")
    bare = counted.drop("series", "value", "unit", strict=False)
    joined = bare.with_row_index("place").join(values, on="place", how="left", maintain_order="left")
    named = joined.with_columns(
        polars.concat_str(col("kernel_name").cast(polars.String), "part", separator=".", ignore_nulls=True)
        .cast(rows.schema["kernel_name"])
        .alias("kernel_name")
    )
    return polars.concat([rows.filter(col("series").is_null()), named], how="diagonal").drop("series", "place", "part")


def _numbers(series: Any) -> list[tuple[str | None, str | None, float | None]]:
    """(part, unit, value) for each number of an event."""
    found = series.items() if isinstance(series, dict) else ()
    numbers = {name: value for name, value in found if isinstance(value, int | float | None)}
    if len(numbers) == 1:
        ((name, value),) = numbers.items()
        return [(None, None if name == "value" else name, None if value is None else float(value))]
    return [(name, None, float(value)) for name, value in numbers.items() if value is not None]
