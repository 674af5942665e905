"""CUPTI's profiler host interface by ctypes: which metrics a chip has and how many passes they take. It needs no GPU.

Source: cupti_profiler_host.h of CUDA 13.0 (`nvidia-cuda-cupti`), whose library loads libnvperf_host.so beside it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from ctypes import c_char_p, c_double, c_int, c_size_t, c_uint8, c_void_p
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tessera.errors import LibraryError
from tessera.system.distribution import installing

LIBRARY: Final = "libcupti.so.13"
ADVICE: Final = [installing("nvidia")]


class ProfilerType(IntEnum):
    """CUpti_ProfilerType."""

    RANGES = 0
    PM_SAMPLING = 1


def parameters(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """A parameter structure of CUPTI: its size and a reserved pointer, then `fields`."""
    return type(name, (ctypes.Structure,), {"_fields_": [("structSize", c_size_t), ("pPriv", c_void_p), *fields]})


InitializeProfiler = parameters("CUpti_Profiler_Initialize_Params")
Initialize = parameters(
    "CUpti_Profiler_Host_Initialize_Params",
    ("profilerType", c_int),
    ("pChipName", c_char_p),
    ("pCounterAvailabilityImage", c_void_p),
    ("pHostObject", c_void_p),
)
Deinitialize = parameters("CUpti_Profiler_Host_Deinitialize_Params", ("pHostObject", c_void_p))
GetSupportedChips = parameters(
    "CUpti_Profiler_Host_GetSupportedChips_Params", ("numChips", c_size_t), ("ppChipNames", ctypes.POINTER(c_char_p))
)
AddMetrics = parameters(
    "CUpti_Profiler_Host_ConfigAddMetrics_Params",
    ("pHostObject", c_void_p),
    ("ppMetricNames", ctypes.POINTER(c_char_p)),
    ("numMetrics", c_size_t),
)
GetConfigImageSize = parameters(
    "CUpti_Profiler_Host_GetConfigImageSize_Params", ("pHostObject", c_void_p), ("configImageSize", c_size_t)
)
GetConfigImage = parameters(
    "CUpti_Profiler_Host_GetConfigImage_Params",
    ("pHostObject", c_void_p),
    ("configImageSize", c_size_t),
    ("pConfigImage", c_void_p),
)
GetNumOfPasses = parameters(
    "CUpti_Profiler_Host_GetNumOfPasses_Params",
    ("configImageSize", c_size_t),
    ("pConfigImage", c_void_p),
    ("numOfPasses", c_size_t),
)
EvaluateToGpuValues = parameters(
    "CUpti_Profiler_Host_EvaluateToGpuValues_Params",
    ("pHostObject", c_void_p),
    ("pCounterDataImage", c_void_p),
    ("counterDataImageSize", c_size_t),
    ("rangeIndex", c_size_t),
    ("ppMetricNames", ctypes.POINTER(c_char_p)),
    ("numMetrics", c_size_t),
    ("pMetricValues", ctypes.POINTER(c_double)),
)


@functools.cache
def library() -> ctypes.CDLL:
    """libcupti, of the package `nvidia-cuda-cupti` or of the system. Raises LibraryError (E_LIBRARY) where there is
    none.
    """
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    found = [path for folder in folders for path in folder.glob(f"*/lib/{LIBRARY}")]
    try:
        return ctypes.CDLL(str(found[0] if found else LIBRARY))
    except OSError as error:
        raise LibraryError(f"CUPTI is not there: {error}", hints=ADVICE) from error


def call(name: str, given: Any) -> None:
    """Calls a function of CUPTI with its parameter structure. Raises LibraryError with CUPTI's name of the failure."""
    # CUPTI's own size ends with the last field, without the padding that follows it.
    last = getattr(type(given), given._fields_[-1][0])
    given.structSize = last.offset + last.size
    result = getattr(library(), name)(ctypes.byref(given))
    if result:
        raise LibraryError(f"{name} failed: {result_name(result)}", hints=PRIVILEGES if result in _PRIVILEGE else ())


def ready_devices() -> None:
    """Readies CUPTI's functions of devices and contexts: before it they refuse right parameters, or crash."""
    call("cuptiProfilerInitialize", InitializeProfiler())


_PRIVILEGE: Final = (35, 40)  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, and the same of virtualized devices
PRIVILEGES: Final = [
    "put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into /etc/modprobe.d and reload the driver, or run as "
    "root, in a container with CAP_SYS_ADMIN"
]


def result_name(result: int) -> str:
    """CUPTI's name of a result, such as CUPTI_ERROR_INSUFFICIENT_PRIVILEGES."""
    text = c_char_p()
    library().cuptiGetResultString(c_int(result), ctypes.byref(text))
    return text.value.decode() if text.value else f"result {result}"


def names_array(names: Sequence[str]) -> ctypes.Array[c_char_p]:
    """Names as C sees them."""
    return (c_char_p * len(names))(*[name.encode() for name in names])


def bytes_array(size: int) -> ctypes.Array[c_uint8]:
    """Zeroed memory for an image."""
    return (c_uint8 * size)()


def chips() -> list[str]:
    """The chips whose metrics the library knows."""
    given: Any = GetSupportedChips()
    call("cuptiProfilerHostGetSupportedChips", given)
    return [given.ppChipNames[index].decode() for index in range(given.numChips)]


class MetricHost:
    """Schedules metrics of a chip, and turns what was counted into their values. Use `with`.

    `availability` is the device's own image of what it lets be counted; without it the chip's full set is assumed.
    Raises LibraryError for a chip or a metric that the library does not know.
    """

    def __init__(self, chip: str, kind: ProfilerType, availability: ctypes.Array[c_uint8] | None = None) -> None:
        given: Any = Initialize(profilerType=kind, pChipName=chip.encode())
        if availability is not None:
            given.pCounterAvailabilityImage = ctypes.addressof(availability)
        call("cuptiProfilerHostInitialize", given)
        self._host = given.pHostObject
        self._availability = availability

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def configure(self, metrics: Sequence[str]) -> ctypes.Array[c_uint8]:
        """The image that says how these metrics are counted. Raises LibraryError where the chip lacks one."""
        names = names_array(metrics)
        call("cuptiProfilerHostConfigAddMetrics", AddMetrics(0, None, self._host, names, len(metrics)))
        sized: Any = GetConfigImageSize(0, None, self._host)
        call("cuptiProfilerHostGetConfigImageSize", sized)
        image = bytes_array(sized.configImageSize)
        call(
            "cuptiProfilerHostGetConfigImage", GetConfigImage(0, None, self._host, len(image), ctypes.addressof(image))
        )
        return image

    def evaluate(self, metrics: Sequence[str], data: ctypes.Array[c_uint8], index: int) -> list[float]:
        """The metrics' values in range or sample number `index` of a counter data image."""
        values = (c_double * len(metrics))()
        asked = EvaluateToGpuValues(
            0, None, self._host, ctypes.addressof(data), len(data), index, names_array(metrics), len(metrics), values
        )
        call("cuptiProfilerHostEvaluateToGpuValues", asked)
        return list(values)

    def close(self) -> None:
        """Gives the host object back."""
        call("cuptiProfilerHostDeinitialize", Deinitialize(0, None, self._host))


def passes_of(image: ctypes.Array[c_uint8]) -> int:
    """How often a kernel has to run to count what a configuration image asks for."""
    given: Any = GetNumOfPasses(0, None, len(image), ctypes.addressof(image))
    call("cuptiProfilerHostGetNumOfPasses", given)
    return int(given.numOfPasses)
