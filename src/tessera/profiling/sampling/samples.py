"""Samples as rows of a trace, and what they say about kernels that ran meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy
import polars
from numpy.typing import NDArray

from tessera.profiling.counters.interfaces import Field
from tessera.profiling.trace.table import COLUMNS, frame

CONDITIONS: Final = ("power_w", "temp_c", "throttle_reason")
"""Columns that describe the state of a device, and so every kernel that ran at that time, however short."""


Taken = tuple[str, Sequence[Field], NDArray[numpy.int64], NDArray[numpy.float64]]
"""Source, fields, instants, and a column of samples for each field."""


def frame_of(taken: Iterable[Taken], zero_ns: int) -> polars.DataFrame:
    """Rows of kind "sample", by instant."""
    parts = [
        _column(source, field, times - zero_ns, numpy.ascontiguousarray(values[:, index]))
        for source, fields, times, values in taken
        for index, field in enumerate(fields)
    ]
    return joined(parts)


def joined(parts: Iterable[polars.DataFrame]) -> polars.DataFrame:
    """Tables of `COLUMNS` as one, by start."""
    return polars.concat([frame({}), *parts]).sort("start_ns", maintain_order=True)


def _column(source: str, field: Field, times: NDArray[numpy.int64], values: NDArray[numpy.float64]) -> polars.DataFrame:
    present = ~numpy.isnan(values)
    count = int(present.sum())
    value = polars.Series(values[present])
    same: dict[str, str | int] = {
        "kind": "sample",
        "kernel_name": field.name,
        "dur_ns": 0,
        "device": field.device,
        "unit": field.unit,
        "backend": source,
    }
    columns: dict[str, object] = {
        "start_ns": polars.Series(times[present]),
        "value": value,
        **{name: polars.repeat(told, count, dtype=COLUMNS[name], eager=True) for name, told in same.items()},
    }
    if field.bits:
        columns[field.name] = polars.Series([bit_names(int(mask), field.bits) for mask in value], dtype=polars.String)
    elif COLUMNS.get(field.name) == polars.Float32:
        columns[field.name] = value
    return frame(columns)


def bit_names(mask: int, bits: Mapping[int, str]) -> str:
    """The names of the bits that are set, joined with "+"; "none" where no named bit is."""
    return "+".join(name for bit, name in bits.items() if mask >> bit & 1) or "none"


def annotated(kernels: polars.DataFrame, samples: polars.DataFrame) -> polars.DataFrame:
    """Kernels with the columns that they lack and that samples of their device have.

    A sample speaks of the time since the one before it, so a kernel takes the first one at or after its end. The state
    of the device goes to every kernel. Counters go only to kernels that lasted at least from one sample to the next:
    of a shorter one they would tell what else ran.
    """
    order = polars.int_range(polars.len(), dtype=polars.Int64).alias("_row")
    found = kernels.with_columns((polars.col("start_ns") + polars.col("dur_ns")).alias("_end"), order).sort("_end")
    for name in _portable(samples):
        known = (
            samples.filter(polars.col(name).is_not_null())
            .select("device", polars.col("start_ns").alias("_at"), polars.col(name).alias("_sampled"))
            .sort("_at")
        )
        since = (polars.col("_at") - polars.col("_at").shift(1).over("device")).alias("_since")
        found = found.join_asof(
            known.with_columns(since),
            left_on="_end",
            right_on="_at",
            by="device",
            strategy="forward",
            check_sortedness=False,
        )
        sampled = polars.col("_sampled")
        if name not in CONDITIONS:
            sampled = polars.when(polars.col("dur_ns") >= polars.col("_since")).then(sampled)
        found = found.with_columns(polars.coalesce(name, sampled).alias(name)).drop(
            "_at", "_sampled", "_since", strict=False
        )
    return found.sort("_row").select(kernels.columns)


def _portable(samples: polars.DataFrame) -> list[str]:
    """Columns that samples have values in, apart from those that describe the sample itself."""
    counters = [name for name, kind in COLUMNS.items() if kind == polars.Float32 or name in CONDITIONS]
    return [name for name in counters if samples[name].null_count() < len(samples)]
