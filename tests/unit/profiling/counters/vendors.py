# ruff: noqa: N802, N818 - names are those of the bindings
"""Stand-ins for vendors' bindings, with the calls, structures and units that their documentation gives.

What they tell is made up; which calls there are, what those take and what they give back is not.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As of pynvml: the number of the error."""


class Nvml(ModuleType):
    """`pynvml` with two GPUs: an H100, and one whose driver gives power only."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_GPM_METRICS_GET_VERSION = 1

    class c_nvmlGpmMetricsGet_t:  # noqa: N801 - the binding's name
        def __init__(self) -> None:
            self.version = self.numMetrics = 0
            self.sample1: Any = None
            self.sample2: Any = None
            self.metrics = [SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(333)]

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.started = 0
        self.samples = 0
        self.energy_kib = 0
        self.processes = [SimpleNamespace(pid=77, usedGpuMemory=5_000_000)]
        self.mask = 0b100100
        self.driver = True

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return ("GPU-aa11", "GPU-bb22")[handle]

    def _only_first(self, handle: int) -> None:
        if handle != 0:
            raise NVMLError("Not Supported")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 350_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        self._only_first(handle)
        return 61

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        self._only_first(handle)
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._only_first(handle)
        return SimpleNamespace(total=80 * 2**30, free=70 * 2**30, used=10 * 2**30)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        self._only_first(handle)
        return self.mask

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._only_first(handle)
        return SimpleNamespace(gpu=97, memory=55)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:
        self.energy_kib += 1
        ok = handle == 0 and fields[0][0] in (197, 138)
        value = SimpleNamespace(ullVal=self.energy_kib * 1000)
        return [SimpleNamespace(nvmlReturn=0 if ok else 3, valueType=3, value=value)]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        self._only_first(handle)
        return self.processes

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(handle == 0))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.samples += 1
        return SimpleNamespace(at=None)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples -= 1

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> Any:
        sample.at = self.started
        return sample

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        assert asked.version == self.NVML_GPM_METRICS_GET_VERSION
        assert asked.sample1 is not asked.sample2
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value, metric.nvmlReturn = 10.0 + metric.metricId, 0 if metric.metricId < 60 else 3
        return asked


class AmdSmiException(Exception):
    """The base of AMD SMI's errors."""


class AmdSmi(ModuleType):
    """`amdsmi` 7.0 with one MI300X."""

    AmdSmiException = AmdSmiException

    class AmdSmiTemperatureType(IntEnum):
        EDGE = 0
        HOTSPOT = 1
        VRAM = 2

    class AmdSmiTemperatureMetric(IntEnum):
        CURRENT = 0

    class AmdSmiClkType(IntEnum):
        SYS = 0
        GFX = 0
        MEM = 4

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.started = 0
        self.driver = True
        self.violations: dict[str, Any] = {
            "active_ppt_pwr": True,
            "active_socket_thrm": False,
            "active_hbm_thrm": True,
            "active_vr_thrm": "N/A",
            "active_prochot_thrm": False,
        }

    def amdsmi_init(self) -> None:
        if not self.driver:
            raise AmdSmiException("AMDSMI_STATUS_DRIVER_NOT_LOADED")
        self.started += 1

    def amdsmi_shut_down(self) -> None:
        self.started -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0]

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return "5bff74a1-0000-1000-80d3-b5d4e4e4e4e4"

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        return {"current_socket_power": 612, "average_socket_power": "N/A", "gfx_voltage": "N/A", "power_limit": 750}

    def amdsmi_get_temp_metric(self, handle: int, sensor: IntEnum, metric: IntEnum) -> int:
        return {1: 71, 2: 58}[int(sensor)]

    def amdsmi_get_clock_info(self, handle: int, kind: IntEnum) -> dict[str, Any]:
        return {"clk": {0: 2100, 4: 1300}[int(kind)], "min_clk": 132, "max_clk": 2100}

    def amdsmi_get_gpu_vram_usage(self, handle: int) -> dict[str, Any]:
        return {"vram_total": 196_592, "vram_used": 2048}

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, Any]:
        return {"gfx_activity": 88, "umc_activity": 43, "mm_activity": "N/A"}

    def amdsmi_get_violation_status(self, handle: int) -> dict[str, Any]:
        return self.violations


class Energy(ctypes.Structure):
    """zes_power_energy_counter_t."""

    _fields_ = (("energy", ctypes.c_uint64), ("timestamp", ctypes.c_uint64))


class Temperature(ctypes.Structure):
    """zes_temp_properties_t, as far as it is read."""

    _fields_ = (("stype", ctypes.c_int32), ("pNext", ctypes.c_void_p), ("type", ctypes.c_int32))


class Frequency(ctypes.Structure):
    """zes_freq_state_t."""

    _fields_ = (
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("currentVoltage", "request", "tdp", "efficient", "actual")),
        ("throttleReasons", ctypes.c_uint32),
    )


class Engine(ctypes.Structure):
    """zes_engine_stats_t."""

    _fields_ = (("activeTime", ctypes.c_uint64), ("timestamp", ctypes.c_uint64))


class Bandwidth(ctypes.Structure):
    """zes_mem_bandwidth_t."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("readCounter", "writeCounter", "maxBandwidth", "timestamp"))


class Memory(ctypes.Structure):
    """zes_mem_state_t."""

    _fields_ = (
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("health", ctypes.c_int32),
        ("free", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


_FILLED: dict[str, dict[str, Any]] = {
    "zesPowerGetEnergyCounter": {"energy": 5_000_000},
    "zesFrequencyGetState": {"currentVoltage": -1.0, "actual": 1600.0, "throttleReasons": 0b1000000001},
    "zesEngineGetActivity": {"activeTime": 123},
    "zesMemoryGetBandwidth": {"readCounter": 1000, "writeCounter": 500},
    "zesMemoryGetState": {"free": 40, "size": 100},
    "zesEngineGetProperties": {"type": 0},
}


class Zes(ModuleType):
    """`pyzes` with one GPU of two memory stacks and sensors for the core and the memory."""

    ZE_RESULT_SUCCESS = 0
    ZES_TEMP_SENSORS_GLOBAL, ZES_TEMP_SENSORS_GPU, ZES_TEMP_SENSORS_MEMORY = 0, 1, 2
    ZES_ENGINE_GROUP_ALL = 0
    ZES_STRUCTURE_TYPE_TEMP_PROPERTIES = 0x14
    ZES_STRUCTURE_TYPE_FREQ_STATE = 0x1B
    ZES_STRUCTURE_TYPE_MEM_STATE = 0x1E
    ZES_STRUCTURE_TYPE_ENGINE_PROPERTIES = 0x5
    zes_driver_handle_t = zes_device_handle_t = zes_pwr_handle_t = zes_temp_handle_t = ctypes.c_void_p
    zes_freq_handle_t = zes_engine_handle_t = zes_mem_handle_t = ctypes.c_void_p
    zes_power_energy_counter_t = Energy
    zes_temp_properties_t = zes_engine_properties_t = Temperature
    zes_freq_state_t = Frequency
    zes_engine_stats_t = Engine
    zes_mem_bandwidth_t = Bandwidth
    zes_mem_state_t = Memory

    def __init__(self) -> None:
        super().__init__("pyzes")
        self.driver = True

    def zesInit(self, flags: int) -> int:
        return 0 if self.driver else 0x78000001  # ZE_RESULT_ERROR_UNINITIALIZED

    def __getattr__(self, name: str) -> Any:
        counts = {"zesDeviceEnumMemoryModules": 2, "zesDeviceEnumTemperatureSensors": 2}
        if name.startswith("zesDeviceEnum") or name in ("zesDriverGet", "zesDeviceGet"):
            return lambda *arguments: self._enumerate(counts.get(name, 1), *arguments[-2:])
        if name in _FILLED:
            return lambda handle, made: self._fill(made._obj, **_FILLED[name])
        if name == "zesTemperatureGetProperties":
            return lambda handle, made: self._fill(made._obj, type=int(handle))
        if name == "zesTemperatureGetState":
            return lambda handle, made: self._fill(made._obj, value=50.0 + int(handle))
        raise AttributeError(name)

    @staticmethod
    def _enumerate(count: int, asked: Any, array: Any) -> int:
        asked._obj.value = count
        for index in range(count if array is not None else 0):
            array[index] = index + 1
        return 0

    @staticmethod
    def _fill(made: Any, **values: Any) -> int:
        for name, value in values.items():
            setattr(made, name, value)
        return 0
