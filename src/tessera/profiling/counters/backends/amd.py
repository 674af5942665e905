"""Sensors of AMD GPUs through `amdsmi`, the library of ROCm. Source: AMD SMI Python API reference (7.0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.profiling.counters.gpu_sensors import Reading, SensorBackend, variable_of, visible
from tessera.profiling.counters.gpus import Vendor
from tessera.profiling.counters.interfaces import Field, Subject

_UNITS: Final = {
    "power_w": "W",
    "temp_c": "C",
    "memory_temp_c": "C",
    "throttle_reason": "",
    "gpu_clock_mhz": "MHz",
    "memory_clock_mhz": "MHz",
    "gpu_util_pct": "%",
    "memory_util_pct": "%",
    "device_memory_bytes": "B",
    "rail_voltage_v": "V",
}
_VIOLATIONS: Final = {
    0: ("active_ppt_pwr", "power"),
    1: ("active_socket_thrm", "thermal"),
    2: ("active_hbm_thrm", "thermal (HBM)"),
    3: ("active_vr_thrm", "thermal (regulator)"),
    4: ("active_prochot_thrm", "thermal (PROCHOT)"),
}


def _number(value: Any) -> float:
    """A value of the library. Raises ValueError for "N/A"."""
    if value == "N/A":
        raise ValueError("the driver says N/A")
    return float(value)


def _readings(smi: Any, handle: Any, device: str) -> list[Reading]:
    def one(name: str, call: Callable[[], Any], scale: float = 1.0) -> Reading:
        return Reading((Field(name, _UNITS[name], device, scale=scale),), lambda: (_number(call()),))

    def power() -> Any:
        told = smi.amdsmi_get_power_info(handle)
        keys = ("current_socket_power", "socket_power", "average_socket_power")
        return next((told[key] for key in keys if not isinstance(told.get(key, ""), str)), "N/A")

    def temperature(sensor: str) -> Any:
        kind = getattr(smi.AmdSmiTemperatureType, sensor)
        return smi.amdsmi_get_temp_metric(handle, kind, smi.AmdSmiTemperatureMetric.CURRENT)

    def clock(kind: str) -> Any:
        return smi.amdsmi_get_clock_info(handle, getattr(smi.AmdSmiClkType, kind))["clk"]

    def utilization() -> Sequence[float]:
        told = smi.amdsmi_get_gpu_activity(handle)
        return _number(told["gfx_activity"]), _number(told["umc_activity"])

    def violations() -> Sequence[float]:
        told = smi.amdsmi_get_violation_status(handle)
        active = [bit for bit, (key, _) in _VIOLATIONS.items() if told[key] is True]
        if all(told[key] == "N/A" for key, _ in _VIOLATIONS.values()):
            raise ValueError("the driver says N/A")
        return (float(sum(1 << bit for bit in active)),)

    throttle = Field("throttle_reason", "", device, bits={bit: name for bit, (_, name) in _VIOLATIONS.items()})
    shares = Field("gpu_util_pct", "%", device), Field("memory_util_pct", "%", device)
    return [
        one("power_w", power),
        one("temp_c", lambda: temperature("HOTSPOT")),
        one("memory_temp_c", lambda: temperature("VRAM")),
        one("gpu_clock_mhz", lambda: clock("GFX")),
        one("memory_clock_mhz", lambda: clock("MEM")),
        one("device_memory_bytes", lambda: smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"], 2.0**20),
        one("rail_voltage_v", lambda: smi.amdsmi_get_power_info(handle)["gfx_voltage"], 1e-3),
        Reading(shares, utilization),
        Reading((throttle,), violations),
    ]


@dataclass(frozen=True)
class AmdBackend(SensorBackend):
    """Power, temperatures, clocks, utilization, memory, throttling and the core's voltage of every GPU."""

    module: str = "amdsmi"
    name: str = "amd"
    vendor: Vendor = "AMD"
    install: str = "python -m pip install amdsmi"
    title: str = "AMD SMI"
    remedy: str = "load the amdgpu driver, and join the group render"
    units: Mapping[str, str] = field(default_factory=lambda: dict(_UNITS))

    def errors(self, library: Any) -> type[Exception]:
        error: type[Exception] = library.AmdSmiException
        return error

    def start(self, library: Any) -> None:
        library.amdsmi_init()

    def stop(self, library: Any) -> None:
        library.amdsmi_shut_down()

    def readings(self, library: Any, subject: Subject) -> list[Reading]:
        handles = library.amdsmi_get_processor_handles()
        identifiers = [str(library.amdsmi_get_gpu_device_uuid(handle)) for handle in handles]
        numbers = visible(variable_of(subject, "HIP_VISIBLE_DEVICES"), identifiers)
        return [
            each for index, number in numbers.items() for each in _readings(library, handles[index], f"cuda:{number}")
        ]


BACKEND = AmdBackend()
