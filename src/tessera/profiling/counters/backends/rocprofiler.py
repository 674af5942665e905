"""Counters of kernels on AMD GPUs, which ROCprofiler-SDK (rocTracer's successor) would give: named, and not read in the
process. What rocprofv3 writes of them is read (`readers/rocprof.py`).
"""

from __future__ import annotations

from tessera.profiling.counters.unread import UnreadKernelCounters

BACKEND = UnreadKernelCounters(
    name="rocprofiler",
    vendor="AMD",
    reason="rocTracer and ROCprofiler-SDK are not read within the process",
    remedy="rocprofv3 --kernel-trace --pmc COUNTERS -- python train.py: its CSV files are read",
)
