"""Counters of kernels on Intel GPUs, which Level Zero's metrics and tracing layers would give: named, and not read.

Source: oneAPI Level Zero specification 1.x, "Metrics" and "API Tracing".
"""

from __future__ import annotations

from tessera.profiling.counters.unread import UnreadKernelCounters

BACKEND = UnreadKernelCounters(
    name="level-zero",
    vendor="Intel",
    reason="Level Zero's metrics and tracing are not read, as Tessera makes no kernels for Intel GPUs",
)
