"""The kernels of a session as rocprofv3 writes them (`kernel_trace.csv`), for tools that read that.

What only AMD's tools know (registers, grid and work-group sizes) is left empty. Timestamps are nanoseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import polars
from polars import col

from tessera.profiling.output import exported
from tessera.profiling.table import Trace

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session

UNKNOWN: Final = (
    "LDS_Block_Size",
    "Scratch_Size",
    "VGPR_Count",
    "Accum_VGPR_Count",
    "SGPR_Count",
    *(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"),
)
"""Columns that are left empty."""


@dataclass(frozen=True, slots=True)
class RocprofCsvExporter:
    """Writes the kernels of a session."""

    path: Path
    needs_kernels: ClassVar[bool] = True

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return write(session.trace(), self.path)


def write(trace: Trace, path: Path) -> Path:
    """Writes the kernels of a trace and gives the file's path. Raises ProfileError when it cannot be written."""
    zero = int(trace.metadata.get("start_unix_ns") or 0)
    name = col("kernel_name").cast(polars.String)
    device = col("device").cast(polars.String).fill_null("cpu")
    known = {
        "Kind": polars.lit("KERNEL_DISPATCH"),
        "Agent_Id": polars.concat_str(polars.lit("Agent "), device.rank("dense")),
        "Queue_Id": col("stream_id").fill_null(0),
        "Stream_Id": col("stream_id").fill_null(0),
        "Thread_Id": col("thread_id").fill_null(0),
        "Dispatch_Id": polars.int_range(1, polars.len() + 1),
        "Kernel_Id": name.rank("dense"),
        "Kernel_Name": name,
        "Correlation_Id": polars.coalesce(col("correlation"), polars.int_range(1, polars.len() + 1)),
        "Start_Timestamp": zero + col("start_ns"),
        "End_Timestamp": zero + col("start_ns") + col("dur_ns"),
        **dict.fromkeys(UNKNOWN, polars.lit(None, polars.String)),
    }
    rows = trace.events.filter(col("kind") == "kernel").select(**known).collect()
    with exported(path, "kernel trace") as file:
        file.write(rows.write_csv(quote_style="non_numeric").encode())
    return path
