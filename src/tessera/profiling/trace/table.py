"""A profile as columns: what sessions become, exporters write, readers give and analyses read.

One row an event. Times are nanoseconds since the trace's zero; percentages are 0 to 100 in columns ending in `_pct`,
ratios 0 to 1 elsewhere. A value that nobody has is null; `Trace.capability` says why, by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import polars

T = TypeVar("T")

KINDS: Final = ("kernel", "memcpy", "collective", "operator", "region", "mark", "counter", "sample")
"""`operator`: an eager torch operator; `counter`: a value of the user's; `sample`: one that the profiler read
periodically. Marks, counters and samples have no duration.
"""

_TEXT: Final = polars.Categorical()

COLUMNS: Final[Mapping[str, Any]] = {
    "kind": polars.Enum(KINDS),
    "kernel_name": _TEXT,  # also the name of a region, mark, counter or sample
    "operator": _TEXT,
    "start_ns": polars.Int64,
    "dur_ns": polars.Int64,
    "rank": polars.Int32,
    "pid": polars.Int32,
    "thread_id": polars.Int64,
    "stream_id": polars.Int32,
    "stream_name": _TEXT,
    "device": _TEXT,  # "cpu", "cuda:0"
    "correlation": polars.Int64,  # the same in a launch and in what it launched
    "plan_id": polars.Int32,
    "step_id": polars.Int32,
    "region": _TEXT,
    "workers": polars.Int32,
    "flops": polars.Float64,
    "bytes": polars.Float64,
    "dtype": _TEXT,
    "schedule": _TEXT,
    "schedule_source": _TEXT,  # who chose it: "model", "tuned", "shipped"
    "fused": _TEXT,  # operators, joined with "+"
    "rewrites": _TEXT,  # names of rewrite rules, joined with ","
    "traffic": _TEXT,  # JSON: the cost model's bytes by memory level
    "shapes": _TEXT,  # JSON
    "stack": _TEXT,  # Python frames, innermost last, joined with ";"
    "backend": _TEXT,
    "value": polars.Float64,
    "unit": _TEXT,
    "sm_occupancy": polars.Float32,
    "warp_divergence_pct": polars.Float32,
    "inst_issue_eff_pct": polars.Float32,
    "mem_stall_pct": polars.Float32,
    "dram_read_gbps": polars.Float32,
    "dram_write_gbps": polars.Float32,
    "l2_hit_rate": polars.Float32,
    "smem_bank_conflicts": polars.Float32,
    "tc_util_pct": polars.Float32,
    "alu_util_pct": polars.Float32,
    "cp_async_inflight": polars.Float32,
    "memcpy_dir": _TEXT,
    "memcpy_gbps": polars.Float32,
    "collective_type": _TEXT,
    "collective_bytes": polars.Float64,
    "collective_algorithm": _TEXT,
    "collective_axis": _TEXT,
    "collective_group_size": polars.Int32,
    "collective_transport": _TEXT,
    "collective_wire_bytes": polars.Float64,
    "collective_wait_us": polars.Float64,
    "collective_transfer_us": polars.Float64,
    "collective_overlap_pct": polars.Float32,
    "power_w": polars.Float32,
    "temp_c": polars.Float32,
    "throttle_reason": _TEXT,
}
"""The columns of every trace, in order, and their types."""


@dataclass(frozen=True)
class Trace:
    """Events of one or more processes, by start, with `COLUMNS`, as a lazy frame: analyses stream it.

    `metadata` is plain JSON: `format`, `source` ("tessera", "kineto", "rocprof", "nsys"), `launched`, `recorded`,
    `dropped_reasons`, `ranks` (rank: `host`, `pid`, `start_unix_ns`, `clock_offset_ns`, `uncertainty_ns`), `target`
    (the CPU: `kind`, `arch`, `name`) and whatever else the source tells. `capability` names the columns that are null
    as a whole, each with its reason.
    """

    events: polars.LazyFrame
    metadata: dict[str, Any] = field(default_factory=dict)
    capability: dict[str, str] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, what: str, make: Callable[[Trace], T]) -> T:
        """What `make` makes of the trace, made the first time: several analyses ask for the same sums."""
        if what not in self._made:
            self._made[what] = make(self)
        made: T = self._made[what]
        return made

    def clocks_us(self) -> float | None:
        """How far the clocks of the ranks may be apart, in microseconds; None where there is one rank, or their clocks
        were not compared.
        """
        told = [rank.get("uncertainty_ns") for rank in self.metadata.get("ranks", {}).values()]
        return None if len(told) < 2 or None in told else max(told) / 1e3


def given(columns: Mapping[str, Any]) -> polars.DataFrame:
    """A table of these columns, typed. Raises KeyError for a name that is no column."""
    unknown = columns.keys() - COLUMNS.keys()
    if unknown:
        raise KeyError(f"no columns of a trace: {', '.join(sorted(unknown))}")
    return polars.DataFrame(
        [
            column.cast(COLUMNS[name]).alias(name)
            if isinstance(column, polars.Series)
            else polars.Series(name, column, COLUMNS[name])
            for name, column in columns.items()
        ]
    )


def complete(events: polars.LazyFrame, known: Iterable[str]) -> polars.LazyFrame:
    """A table of the columns `known`, with all of `COLUMNS`: the others are null, and made when they are read."""
    held = set(known)
    missing = [polars.lit(None, kind).alias(name) for name, kind in COLUMNS.items() if name not in held]
    return events.with_columns(missing).select(*COLUMNS)


def frame(columns: Mapping[str, Any]) -> polars.DataFrame:
    """A table with all of `COLUMNS`, typed, of those that are given; the others are null. Raises KeyError for a name
    that is no column.
    """
    return complete(given(columns).lazy(), columns).collect()
