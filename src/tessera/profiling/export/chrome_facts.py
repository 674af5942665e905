"""What stands in a Chrome trace of ours, for those who write it and those who read it."""

from __future__ import annotations

from typing import Final

OPENING: Final = "tessera"
"""The name of the first event of a file, which viewers pass over. Its `own` names the arguments of slices that are not
among the facts, so that a reader knows what to look for.
"""

SLICES: Final = ("kernel", "memcpy", "collective", "operator", "region")
"""Kinds with a duration. Regions, the last, have no arguments."""

FACTS: Final = (
    "operator",
    "kernel_name",
    "plan_id",
    "step_id",
    "region",
    "workers",
    "flops",
    "bytes",
    "dtype",
    "schedule",
    "schedule_source",
    "fused",
    "rewrites",
    "traffic",
    "shapes",
    "stack",
    "backend",
    "memcpy_dir",
    "collective_type",
    "collective_bytes",
    "collective_algorithm",
    "collective_axis",
    "collective_group_size",
    "collective_transport",
    "throttle_reason",
)
"""Columns that are the same for all slices of one number `k`; arguments are called as their columns."""

COUNTERS: Final = (
    "sm_occupancy",
    "tc_util_pct",
    "warp_divergence_pct",
    "inst_issue_eff_pct",
    "mem_stall_pct",
    "dram_read_gbps",
    "dram_write_gbps",
    "l2_hit_rate",
    "smem_bank_conflicts",
    "alu_util_pct",
    "cp_async_inflight",
    "memcpy_gbps",
    "collective_wire_bytes",
    "collective_wait_us",
    "collective_transfer_us",
    "collective_overlap_pct",
    "power_w",
    "temp_c",
)
"""Columns of numbers that each slice has of its own, written with four digits, as no counter is more exact."""

ARGUMENTS: Final = {"collective_overlap_pct": "overlap_pct", "collective_bytes": "bytes"}
"""Columns whose argument has another name, as the specification writes it."""
