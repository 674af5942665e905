"""Sensors of Intel GPUs through `pyzes`, the Sysman part of Level Zero. Source: oneAPI Level Zero specification 1.x.

Structures are the library's own (ctypes); a result other than 0 is an error. Domains of one kind (tiles, memory stacks)
are added, of temperatures the hottest is taken.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.profiling.counters.gpu_sensors import LibraryRefusal, Opened, Reading, capabilities_of, load, open_of
from tessera.profiling.counters.gpus import Vendor
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject

_UNITS: Final = {
    "power_w": "W",
    "temp_c": "C",
    "memory_temp_c": "C",
    "throttle_reason": "",
    "gpu_clock_mhz": "MHz",
    "gpu_util_pct": "%",
    "dram_read_gbps": "GB/s",
    "dram_write_gbps": "GB/s",
    "device_memory_bytes": "B",
    "rail_voltage_v": "V",
}
_THROTTLING: Final = {
    0: "power (average)",
    1: "power (burst)",
    2: "current",
    3: "thermal (limit)",
    4: "power supply",
    5: "software range",
    6: "hardware range",
    7: "voltage",
    8: "thermal",
    9: "power",
}
"""Bits of `zes_freq_throttle_reason_flags_t`."""


class SysmanError(Exception):
    """A call of Level Zero gave a result other than success."""


class Sysman:
    """Calls of the library that raise on failure, and lists as it hands them out: first the count, then the handles."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def call(self, name: str, *arguments: Any) -> None:
        """Raises SysmanError with the name and the result."""
        result = getattr(self.library, name)(*arguments)
        if result != self.library.ZE_RESULT_SUCCESS:
            raise SysmanError(f"{name} gave {result:#x}")

    def handles(self, name: str, kind: str, *owner: Any) -> list[Any]:
        """The handles of an enumeration; empty where the device has none of that kind."""
        count = ctypes.c_uint32(0)
        self.call(name, *owner, ctypes.byref(count), None)
        array = (getattr(self.library, kind) * count.value)()
        if count.value:
            self.call(name, *owner, ctypes.byref(count), array)
        return list(array)

    def structure(self, name: str, kind: str, handle: Any, tag: str = "") -> Any:
        """A structure filled by a call; `tag` is the constant that says what the structure is."""
        made = getattr(self.library, kind)()
        if tag:
            made.stype = getattr(self.library, tag)
        self.call(name, handle, ctypes.byref(made))
        return made


def _readings(sysman: Sysman, gpu: Any, device: str) -> list[Reading]:
    def one(name: str, call: Callable[[], float], *, cumulative: bool = False, scale: float = 1.0) -> Reading:
        return Reading((Field(name, _UNITS[name], device, cumulative, scale),), lambda: (call(),))

    def some(found: list[Any], what: str) -> list[Any]:
        if not found:
            raise SysmanError(f"the device has no {what}")
        return found

    def listed(name: str, kind: str) -> list[Any]:
        return sysman.handles(name, kind, gpu)

    def energy() -> float:
        domains = some(listed("zesDeviceEnumPowerDomains", "zes_pwr_handle_t"), "power domains")
        # The first domain is the card; others are parts of it.
        return float(sysman.structure("zesPowerGetEnergyCounter", "zes_power_energy_counter_t", domains[0]).energy)

    def temperature(kinds: Sequence[str]) -> float:
        wanted = {getattr(sysman.library, kind) for kind in kinds}
        found = []
        for sensor in listed("zesDeviceEnumTemperatureSensors", "zes_temp_handle_t"):
            told = sysman.structure(
                "zesTemperatureGetProperties", "zes_temp_properties_t", sensor, "ZES_STRUCTURE_TYPE_TEMP_PROPERTIES"
            )
            if told.type in wanted:
                value = ctypes.c_double()
                sysman.call("zesTemperatureGetState", sensor, ctypes.byref(value))
                found.append(value.value)
        return float(max(some(found, "such temperature sensor")))

    def clocks() -> list[Any]:
        domains = some(listed("zesDeviceEnumFrequencyDomains", "zes_freq_handle_t"), "frequency domains")
        return [
            sysman.structure("zesFrequencyGetState", "zes_freq_state_t", each, "ZES_STRUCTURE_TYPE_FREQ_STATE")
            for each in domains
        ]

    def throttling() -> float:
        mask = 0
        for state in clocks():
            mask |= int(state.throttleReasons)
        return float(mask)

    def voltage() -> float:
        value = float(clocks()[0].currentVoltage)
        if value <= 0:  # the library's word for unknown is negative
            raise SysmanError("the driver gives no voltage")
        return value

    def activity() -> float:
        for engine in listed("zesDeviceEnumEngineGroups", "zes_engine_handle_t"):
            told = sysman.structure(
                "zesEngineGetProperties", "zes_engine_properties_t", engine, "ZES_STRUCTURE_TYPE_ENGINE_PROPERTIES"
            )
            if told.type == sysman.library.ZES_ENGINE_GROUP_ALL:
                return float(sysman.structure("zesEngineGetActivity", "zes_engine_stats_t", engine).activeTime)
        raise SysmanError("the device has no count of all engines")

    def memories() -> list[Any]:
        return some(listed("zesDeviceEnumMemoryModules", "zes_mem_handle_t"), "memory modules")

    def moved() -> Sequence[float]:
        told = [sysman.structure("zesMemoryGetBandwidth", "zes_mem_bandwidth_t", each) for each in memories()]
        return float(sum(each.readCounter for each in told)), float(sum(each.writeCounter for each in told))

    def used() -> float:
        tag = "ZES_STRUCTURE_TYPE_MEM_STATE"
        told = [sysman.structure("zesMemoryGetState", "zes_mem_state_t", each, tag) for each in memories()]
        return float(sum(each.size - each.free for each in told))

    traffic = tuple(Field(name, "GB/s", device, True, 1e-9) for name in ("dram_read_gbps", "dram_write_gbps"))
    throttle = Field("throttle_reason", "", device, bits=_THROTTLING)
    return [
        one("power_w", energy, cumulative=True, scale=1e-6),
        one("temp_c", lambda: temperature(("ZES_TEMP_SENSORS_GPU", "ZES_TEMP_SENSORS_GLOBAL"))),
        one("memory_temp_c", lambda: temperature(("ZES_TEMP_SENSORS_MEMORY",))),
        Reading((throttle,), lambda: (throttling(),)),
        one("gpu_clock_mhz", lambda: float(clocks()[0].actual)),
        one("gpu_util_pct", activity, cumulative=True, scale=1e-4),  # microseconds in a second, as percent
        Reading(traffic, moved),
        one("device_memory_bytes", used),
        one("rail_voltage_v", voltage),
    ]


@dataclass(frozen=True)
class IntelBackend:
    """Power, temperatures, clocks, throttling, utilization and memory traffic of every GPU."""

    module: str = "pyzes"
    name: str = "intel"
    activities: frozenset[str] = frozenset({"gpu", "power"})
    vendor: Vendor = "Intel"
    units: Mapping[str, str] = field(default_factory=lambda: dict(_UNITS))

    def begin(self, subject: Subject) -> Opened:
        """Starts Sysman."""
        sysman = Sysman(load(self.module, "pyzes"))
        try:
            sysman.call("zesInit", 0)
            gpus = [
                gpu
                for driver in sysman.handles("zesDriverGet", "zes_driver_handle_t")
                for gpu in sysman.handles("zesDeviceGet", "zes_device_handle_t", driver)
            ]
        except SysmanError as error:
            remedy = "install the Intel GPU driver with Level Zero, and join the group render"
            raise LibraryRefusal(f"Level Zero: {error}", remedy) from error
        if not gpus:
            raise LibraryRefusal("Level Zero finds no GPU", "none needed without an Intel GPU")
        readings = [each for number, gpu in enumerate(gpus) for each in _readings(sysman, gpu, f"xpu:{number}")]
        return Opened(readings, (SysmanError,), lambda: None)

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        return capabilities_of(self, subject)

    def open(self, subject: Subject) -> Sequence[Sampler]:
        return open_of(self, subject, 20.0)


BACKEND = IntelBackend()
