"""GPM of Hopper and later GPUs through NVML: occupancy, tensor cores, arithmetic, DRAM and links over an interval.

Sources: NVML API reference, "GPM Functions". NVML renews these counters too slowly for intervals below 100 ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.profiling.counters.backends.nvml import NvmlBackend, devices
from tessera.profiling.counters.gpu_sensors import UNREADABLE, LibraryRefusal
from tessera.profiling.counters.gpus import refused
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject

SHORTEST_MS: Final = 100.0

METRICS: Final = {
    "sm_occupancy": (3, "", 1e-2),  # NVML gives percent; ratios are 0 to 1 here
    "tc_util_pct": (5, "%", 1.0),
    "alu_util_pct": (12, "%", 1.0),  # fp32 outside tensor cores
    "fp16_util_pct": (13, "%", 1.0),
    "fp64_util_pct": (11, "%", 1.0),
    "sm_util_pct": (2, "%", 1.0),
    "dram_util_pct": (10, "%", 1.0),
    "gpm_pcie_tx": (20, "B/s", 2.0**20),
    "gpm_pcie_rx": (21, "B/s", 2.0**20),
    "gpm_nvlink_rx": (60, "B/s", 2.0**20),
    "gpm_nvlink_tx": (61, "B/s", 2.0**20),
}
"""NVML_GPM_METRIC_* by field, unit, and the unit's worth."""


class GpmSampler:
    """What the GPU counted between two readings of the sampler."""

    min_interval_ms = SHORTEST_MS

    def __init__(self, nvml: Any, handle: Any, device: str) -> None:
        self.fields: Sequence[Field] = [
            Field(name, unit, device, scale=scale) for name, (_, unit, scale) in METRICS.items()
        ]
        self._nvml, self._handle = nvml, handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        nvml.nvmlGpmSampleGet(handle, self._samples[0])

    def read(self) -> Sequence[float]:
        nvml = self._nvml
        try:
            before, after = self._samples
            nvml.nvmlGpmSampleGet(self._handle, after)
            self._samples = [after, before]
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
            asked.sample1, asked.sample2 = before, after
            for index, (number, _, _) in enumerate(METRICS.values()):
                asked.metrics[index].metricId = number
            nvml.nvmlGpmMetricsGet(asked)
        except (nvml.NVMLError, *UNREADABLE):
            return [math.nan] * len(METRICS)
        found = (asked.metrics[index] for index in range(len(METRICS)))
        return [each.value if each.nvmlReturn == nvml.NVML_SUCCESS else math.nan for each in found]

    def close(self) -> None:
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._nvml.nvmlShutdown()


@dataclass(frozen=True)
class GpmBackend:
    """Utilization of the parts of each GPU, without replay and without privileges."""

    module: str = "pynvml"
    name: str = "gpm"
    activities: frozenset[str] = frozenset({"gpu"})

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        try:
            nvml = NvmlBackend(self.module).started()
        except LibraryRefusal as refusal:
            units = {name: unit for name, (_, unit, _) in METRICS.items()}
            return refused(units, "NVIDIA", *refusal.capability)
        try:
            supported = any(_supports(nvml, handle) for handle, _ in devices(nvml, subject))
        finally:
            nvml.nvmlShutdown()
        why = () if supported else ("the GPU has no GPM counters", "Hopper or later has them, outside of MIG and vGPU")
        return {name: Capability(unit, *why) for name, (_, unit, _) in METRICS.items()}

    def open(self, subject: Subject) -> Sequence[Sampler]:
        try:
            nvml = NvmlBackend(self.module).started()
        except LibraryRefusal:
            return []
        found: list[Sampler] = []
        try:
            for handle, device in devices(nvml, subject):
                if _supports(nvml, handle):
                    nvml.nvmlInit()  # each sampler ends its own
                    found.append(GpmSampler(nvml, handle, device))
        finally:
            nvml.nvmlShutdown()
        return found


def _supports(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except (nvml.NVMLError, *UNREADABLE):
        return False


BACKEND = GpmBackend()
