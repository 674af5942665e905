"""Sensors of NVIDIA GPUs through NVML (`nvidia-ml-py`): power, heat, clocks, throttling, links, and on Hopper GPM.

Source: NVML API reference; constants are those of nvml.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.profiling.counters.gpu_sensors import Reading, SensorBackend, variable_of, visible
from tessera.profiling.counters.gpus import Vendor
from tessera.profiling.counters.interfaces import Capability, Field, Subject
from tessera.system.distribution import installing

_THROTTLING: Final = {
    1: "user clocks",
    2: "power",
    3: "hardware",
    4: "sync boost",
    5: "thermal",
    6: "thermal (hardware)",
    7: "power brake",
    8: "display clocks",
    10: "reliability",
}
"""Bits of `nvmlClocksEventReasons`; bit 0, an idle GPU, is no throttling."""

_ALL_LINKS: Final = 0xFFFFFFFF
_COUNTERS: Final = {
    "pcie_tx": (197, 0, 1),  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES
    "pcie_rx": (198, 0, 1),
    "nvlink_tx": (138, _ALL_LINKS, 1024),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB
    "nvlink_rx": (139, _ALL_LINKS, 1024),
}
"""Field number, scope and bytes a count of cumulative traffic."""

_UNITS: Final = {
    "power_w": "W",
    "temp_c": "C",
    "throttle_reason": "",
    "sm_clock_mhz": "MHz",
    "memory_clock_mhz": "MHz",
    "gpu_util_pct": "%",
    "memory_util_pct": "%",
    "device_memory_bytes": "B",
    "process_device_memory_bytes": "B",
    "pcie_tx": "B/s",
    "pcie_rx": "B/s",
    "nvlink_tx": "B/s",
    "nvlink_rx": "B/s",
    "rail_voltage_v": "V",
}

_VALUE_KINDS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_RAILS: Final = Capability("V", "NVML gives no voltages of rails")


def _simple(nvml: Any, handle: Any, device: str) -> list[Reading]:
    """One reading for each call that gives one or two plain numbers."""

    def one(name: str, unit: str, call: Callable[[], Any], scale: float = 1.0) -> Reading:
        return Reading((Field(name, unit, device, scale=scale),), lambda: (float(call()),))

    def utilization() -> Sequence[float]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu, rates.memory

    throttle = Field("throttle_reason", "", device, bits=_THROTTLING)
    shares = Field("gpu_util_pct", "%", device), Field("memory_util_pct", "%", device)
    return [
        one("power_w", "W", lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1e-3),
        one("temp_c", "C", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        one("sm_clock_mhz", "MHz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        one("memory_clock_mhz", "MHz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        one("device_memory_bytes", "B", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        Reading((throttle,), lambda: (float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),)),
        Reading(shares, utilization),
    ]


def _counter(nvml: Any, handle: Any, device: str, name: str) -> Reading:
    number, scope, worth = _COUNTERS[name]

    def read() -> Sequence[float]:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return (float(getattr(value.value, _VALUE_KINDS[value.valueType])) * worth,)

    return Reading((Field(name, "B/s", device, cumulative=True),), read)


def _process(nvml: Any, handle: Any, device: str, pid: int) -> Reading:
    """Device memory of the subject; NaN while it uses none."""

    def read() -> Sequence[float]:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        used = next((each.usedGpuMemory for each in running if each.pid == pid), None)
        return (math.nan if used is None else float(used),)

    return Reading((Field("process_device_memory_bytes", "B", device),), read)


@dataclass(frozen=True)
class NvmlBackend(SensorBackend):
    """Power, temperature, clocks, throttle reasons, utilization, memory and links of the GPUs that the subject sees."""

    module: str = "pynvml"
    name: str = "nvml"
    vendor: Vendor = "NVIDIA"
    install: str = installing("nvidia")
    title: str = "NVML"
    remedy: str = "install the NVIDIA driver; in a container, run it with --gpus and the utility capability"
    units: Mapping[str, str] = field(default_factory=lambda: dict(_UNITS))
    refused: Mapping[str, Capability] = field(default_factory=lambda: {"rail_voltage_v": _RAILS})

    def errors(self, library: Any) -> type[Exception]:
        error: type[Exception] = library.NVMLError
        return error

    def start(self, library: Any) -> None:
        library.nvmlInit()

    def stop(self, library: Any) -> None:
        library.nvmlShutdown()

    def readings(self, library: Any, subject: Subject) -> list[Reading]:
        return [
            reading
            for handle, device in devices(library, subject)
            for reading in (
                *_simple(library, handle, device),
                *(_counter(library, handle, device, name) for name in _COUNTERS),
                _process(library, handle, device, subject.pid),
            )
        ]


def devices(nvml: Any, subject: Subject) -> list[tuple[Any, str]]:
    """Handle and name ("cuda:0") of every GPU that the subject sees."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    numbers = visible(
        variable_of(subject, "CUDA_VISIBLE_DEVICES"), [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    )
    return [(handles[index], f"cuda:{number}") for index, number in numbers.items()]


BACKEND = NvmlBackend()
