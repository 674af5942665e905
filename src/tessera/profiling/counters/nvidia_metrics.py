"""Which metrics of NVIDIA's Perfworks fill which columns of a trace. Names and passes are checked without a GPU by
`perfworks.py` (tests/unit/profiling/counters/test_perfworks.py).

Source: Nsight Compute documentation, "Metrics Structure" and "Metrics Reference".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WARP: Final = 32


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, and how its value becomes that of a column, in `unit`: `offset + scale * value`."""

    name: str
    unit: str
    scale: float = 1.0
    offset: float = 0.0

    def column_value(self, value: float) -> float:
        """The column's value of one of the metric's."""
        return self.offset + self.scale * value


SAMPLED: Final[Mapping[str, Metric]] = {
    "sm_occupancy": Metric("sm__warps_active_realtime.avg.pct_of_peak_sustained_active", "", 1e-2),
    "inst_issue_eff_pct": Metric("sm__issue_active.avg.pct_of_peak_sustained_active", "%"),
    "tc_util_pct": Metric("sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed", "%"),
    "dram_read_gbps": Metric("dram__bytes_read.sum.per_second", "GB/s", 1e-9),
    "dram_write_gbps": Metric("dram__bytes_write.sum.per_second", "GB/s", 1e-9),
}
"""What PM sampling collects, in one pass, while the program runs (A100, H100, B200, RTX of Ada)."""

RANGES: Final[Mapping[str, Metric]] = {
    "sm_occupancy": Metric("sm__warps_active.avg.pct_of_peak_sustained_active", "", 1e-2),
    "inst_issue_eff_pct": Metric("sm__issue_active.avg.pct_of_peak_sustained_active", "%"),
    "tc_util_pct": Metric("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "dram_read_gbps": Metric("dram__bytes_read.sum.per_second", "GB/s", 1e-9),
    "dram_write_gbps": Metric("dram__bytes_write.sum.per_second", "GB/s", 1e-9),
    "l2_hit_rate": Metric("lts__t_sector_hit_rate.pct", "", 1e-2),
    "smem_bank_conflicts": Metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", ""),
    "alu_util_pct": Metric("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "mem_stall_pct": Metric("smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct", "%"),
    # Threads of a warp that an instruction leaves out, on average.
    "warp_divergence_pct": Metric("smsp__thread_inst_executed_per_inst_executed.ratio", "%", -100 / WARP, 100.0),
}
"""What range profiling collects by replay of each kernel, in three passes at most. The columns of `SAMPLED` alone take
one.
"""

DURATION: Final = Metric("gpu__time_duration.sum", "ns")
"""How long a kernel took, which takes no further pass."""

MISSING: Final[Mapping[str, str]] = {
    "cp_async_inflight": "the hardware counts asynchronous copies that were issued, not those in flight"
}
"""Columns that no metric gives, and why."""

CHIPS: Final[Mapping[tuple[int, int], str]] = {
    (8, 0): "GA100",
    (8, 6): "GA102",
    (8, 9): "AD102",
    (9, 0): "GH100",
    (10, 0): "GB100",
}
"""Chips by compute capability whose names and passes are checked; a device names its own chip at run time."""
