"""The memory breakdown of kernels as the compiler estimates it: bytes moved by memory level, and scratch memory."""

from __future__ import annotations

import json
from typing import Final

import polars
from polars import col

from tessera.errors import ProfileError
from tessera.profiling.analyses import kernels
from tessera.profiling.schema import SCRATCH
from tessera.profiling.table import Trace

LEVELS: Final = {"L1": "l1_mb", "L2": "l2_mb", "L3": "l3_mb", "DRAM": "dram_mb"}
"""Memory levels of `StepFacts.traffic`, and their columns in `estimated`."""
COLUMNS: Final = (*LEVELS.values(), "scratch_mb")
MB: Final = 1e6


def estimated(trace: Trace) -> polars.DataFrame:
    """A row per kernel `name`, in MB: what all of its calls move to and from each level by the cost model, null where a
    call has no estimate, and the most scratch memory that a call uses. Raises ProfileError for what is no estimate.
    """
    calls = (
        kernels.kernels(trace)
        .group_by(kernels.NAME.alias("name"), "traffic")
        .agg(polars.len().alias("calls"))
        .collect(engine="streaming")
        .with_columns(col("name", "traffic").cast(polars.String))
    )
    told = {text: _parsed(text) for text in calls["traffic"].unique() if text is not None}
    nothing: dict[str, float] = {}
    moved = [told.get(text, nothing) for text in calls["traffic"]]
    levels = {column: [each.get(level) for each in moved] for level, column in LEVELS.items()}
    scratch = [each.get(SCRATCH) for each in moved]
    types = dict.fromkeys(COLUMNS, polars.Float64())
    wide = calls.hstack(polars.DataFrame({**levels, "scratch_mb": scratch}, schema_overrides=types))
    total = [
        polars.when(col(column).null_count() == 0).then((col(column) * col("calls")).sum() / MB).alias(column)
        for column in LEVELS.values()
    ]
    return wide.group_by("name").agg(*total, col("scratch_mb").max() / MB)


def _parsed(text: str) -> dict[str, float]:
    try:
        return {str(level): float(nbytes) for level, nbytes in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ProfileError(f"the traffic of a kernel is no object of numbers: {text[:60]!r}") from error
