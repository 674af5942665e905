"""Sensors of Intel GPUs through `pyzes`, the Sysman part of Level Zero. Source: oneAPI Level Zero specification 1.x.

Structures are the library's own (ctypes); a result other than 0 is an error. Domains of one kind (tiles, memory stacks)
are added, of temperatures the hottest is taken.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.profiling.counters.gpu_sensors import LibraryRefusal, Reading, SensorBackend
from tessera.profiling.counters.gpus import Vendor
from tessera.profiling.counters.interfaces import Field, Subject

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


class Gpu:
    """The sensors of one device."""

    def __init__(self, sysman: Sysman, handle: Any) -> None:
        self._sysman, self._handle = sysman, handle

    def _listed(self, name: str, kind: str, what: str) -> list[Any]:
        """The device's domains of a kind. Raises SysmanError where it has none."""
        found = self._sysman.handles(name, kind, self._handle)
        if not found:
            raise SysmanError(f"the device has no {what}")
        return found

    def energy(self) -> float:
        """Microjoules: of the first domain, which is the card; others are parts of it."""
        card, *_ = self._listed("zesDeviceEnumPowerDomains", "zes_pwr_handle_t", "power domains")
        return float(self._sysman.structure("zesPowerGetEnergyCounter", "zes_power_energy_counter_t", card).energy)

    def temperature(self, *kinds: str) -> float:
        """Of the hottest sensor of these kinds."""
        wanted = {getattr(self._sysman.library, kind) for kind in kinds}
        kind, tag = "zes_temp_properties_t", "ZES_STRUCTURE_TYPE_TEMP_PROPERTIES"
        found = []
        for sensor in self._listed("zesDeviceEnumTemperatureSensors", "zes_temp_handle_t", "temperature sensors"):
            if self._sysman.structure("zesTemperatureGetProperties", kind, sensor, tag).type in wanted:
                value = ctypes.c_double()
                self._sysman.call("zesTemperatureGetState", sensor, ctypes.byref(value))
                found.append(value.value)
        if not found:
            raise SysmanError("the device has no such temperature sensor")
        return float(max(found))

    def _clocks(self) -> list[Any]:
        domains = self._listed("zesDeviceEnumFrequencyDomains", "zes_freq_handle_t", "frequency domains")
        kind, tag = "zes_freq_state_t", "ZES_STRUCTURE_TYPE_FREQ_STATE"
        return [self._sysman.structure("zesFrequencyGetState", kind, each, tag) for each in domains]

    def clock(self) -> float:
        """Megahertz, of the first domain."""
        return float(self._clocks()[0].actual)

    def throttling(self) -> float:
        """The reasons of all domains, as bits."""
        mask = 0
        for state in self._clocks():
            mask |= int(state.throttleReasons)
        return float(mask)

    def voltage(self) -> float:
        """Volts, of the first clock's domain."""
        value = float(self._clocks()[0].currentVoltage)
        if value <= 0:  # the library's word for unknown is negative
            raise SysmanError("the driver gives no voltage")
        return value

    def activity(self) -> float:
        """Microseconds that any engine worked."""
        kind, tag = "zes_engine_properties_t", "ZES_STRUCTURE_TYPE_ENGINE_PROPERTIES"
        for engine in self._listed("zesDeviceEnumEngineGroups", "zes_engine_handle_t", "engines"):
            told = self._sysman.structure("zesEngineGetProperties", kind, engine, tag)
            if told.type == self._sysman.library.ZES_ENGINE_GROUP_ALL:
                return float(self._sysman.structure("zesEngineGetActivity", "zes_engine_stats_t", engine).activeTime)
        raise SysmanError("the device has no count of all engines")

    def _memories(self) -> list[Any]:
        return self._listed("zesDeviceEnumMemoryModules", "zes_mem_handle_t", "memory modules")

    def moved(self) -> Sequence[float]:
        """Bytes read and written so far."""
        kind = "zes_mem_bandwidth_t"
        told = [self._sysman.structure("zesMemoryGetBandwidth", kind, each) for each in self._memories()]
        return float(sum(each.readCounter for each in told)), float(sum(each.writeCounter for each in told))

    def used(self) -> float:
        """Bytes of memory in use."""
        kind, tag = "zes_mem_state_t", "ZES_STRUCTURE_TYPE_MEM_STATE"
        told = [self._sysman.structure("zesMemoryGetState", kind, each, tag) for each in self._memories()]
        return float(sum(each.size - each.free for each in told))

    def readings(self, device: str) -> list[Reading]:
        """All of them, of a device of this name."""

        def one(name: str, call: Callable[[], float], *, cumulative: bool = False, scale: float = 1.0) -> Reading:
            return Reading((Field(name, _UNITS[name], device, cumulative, scale),), lambda: (call(),))

        traffic = tuple(Field(name, "GB/s", device, True, 1e-9) for name in ("dram_read_gbps", "dram_write_gbps"))
        throttle = Field("throttle_reason", "", device, bits=_THROTTLING)
        return [
            one("power_w", self.energy, cumulative=True, scale=1e-6),
            one("temp_c", lambda: self.temperature("ZES_TEMP_SENSORS_GPU", "ZES_TEMP_SENSORS_GLOBAL")),
            one("memory_temp_c", lambda: self.temperature("ZES_TEMP_SENSORS_MEMORY")),
            Reading((throttle,), lambda: (self.throttling(),)),
            one("gpu_clock_mhz", self.clock),
            one("gpu_util_pct", self.activity, cumulative=True, scale=1e-4),  # microseconds in a second, as percent
            Reading(traffic, self.moved),
            one("device_memory_bytes", self.used),
            one("rail_voltage_v", self.voltage),
        ]


@dataclass(frozen=True)
class IntelBackend(SensorBackend):
    """Power, temperatures, clocks, throttling, utilization and memory traffic of every GPU."""

    module: str = "pyzes"
    name: str = "intel"
    vendor: Vendor = "Intel"
    install: str = "python -m pip install pyzes"
    title: str = "Level Zero"
    remedy: str = "install the Intel GPU driver with Level Zero, and join the group render"
    units: Mapping[str, str] = field(default_factory=lambda: dict(_UNITS))

    def errors(self, library: Any) -> type[Exception]:
        return SysmanError

    def start(self, library: Any) -> None:
        Sysman(library).call("zesInit", 0)

    def stop(self, library: Any) -> None:
        """Level Zero ends with the process."""

    def readings(self, library: Any, subject: Subject) -> list[Reading]:
        sysman = Sysman(library)
        gpus = [
            Gpu(sysman, handle)
            for driver in sysman.handles("zesDriverGet", "zes_driver_handle_t")
            for handle in sysman.handles("zesDeviceGet", "zes_device_handle_t", driver)
        ]
        if not gpus:
            raise LibraryRefusal("Level Zero finds no GPU", "none needed without an Intel GPU")
        return [each for number, gpu in enumerate(gpus) for each in gpu.readings(f"xpu:{number}")]


BACKEND = IntelBackend()
