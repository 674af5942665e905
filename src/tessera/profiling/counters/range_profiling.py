"""Range profiling of NVIDIA GPUs: the counters of each kernel, one kernel at a time, by replay.

The device saves and restores its memory and runs each kernel once for every pass, so that a program runs many times
slower: for one plan at a time, never for a program at work. Source: cupti_range_profiler.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_void_p
from types import TracebackType
from typing import Any, Final, Self

from tessera.errors import LibraryError
from tessera.profiling.counters import perfworks
from tessera.profiling.counters.nvidia_metrics import RANGES, Metric
from tessera.profiling.counters.perfworks import MetricHost, ProfilerType, bytes_array, call, names_array, parameters

_AUTO_RANGE: Final = 1  # CUPTI_AutoRange: each kernel is a range
_KERNEL_REPLAY: Final = 2  # CUPTI_KernelReplay: CUPTI repeats each kernel for all passes

GetCounterAvailability = parameters(
    "CUpti_Profiler_GetCounterAvailability_Params",
    ("ctx", c_void_p),
    ("counterAvailabilityImageSize", c_size_t),
    ("pCounterAvailabilityImage", c_void_p),
)
Enable = parameters("CUpti_RangeProfiler_Enable_Params", ("ctx", c_void_p), ("pRangeProfilerObject", c_void_p))
Start = parameters("CUpti_RangeProfiler_Start_Params", ("pRangeProfilerObject", c_void_p))  # also of Disable
Stop = parameters(
    "CUpti_RangeProfiler_Stop_Params",
    ("pRangeProfilerObject", c_void_p),
    ("passIndex", c_size_t),
    ("targetNestingLevel", c_size_t),
    ("isAllPassSubmitted", c_uint8),
)
SetConfig = parameters(
    "CUpti_RangeProfiler_SetConfig_Params",
    ("pRangeProfilerObject", c_void_p),
    ("configSize", c_size_t),
    ("pConfig", c_void_p),
    ("counterDataImageSize", c_size_t),
    ("pCounterDataImage", c_void_p),
    ("range", c_int),
    ("replayMode", c_int),
    ("maxRangesPerPass", c_size_t),
    ("numNestingLevels", c_uint16),
    ("minNestingLevel", c_uint16),
    ("passIndex", c_size_t),
    ("targetNestingLevel", c_uint16),
)
GetCounterDataSize = parameters(
    "CUpti_RangeProfiler_GetCounterDataSize_Params",
    ("pRangeProfilerObject", c_void_p),
    ("pMetricNames", ctypes.POINTER(c_char_p)),
    ("numMetrics", c_size_t),
    ("maxNumOfRanges", c_size_t),
    ("maxNumRangeTreeNodes", c_uint32),
    ("counterDataSize", c_size_t),
)
InitializeImage = parameters(
    "CUpti_RangeProfiler_CounterDataImage_Initialize_Params",
    ("pRangeProfilerObject", c_void_p),
    ("counterDataSize", c_size_t),
    ("pCounterData", c_void_p),
)
DecodeData = parameters(
    "CUpti_RangeProfiler_DecodeData_Params", ("pRangeProfilerObject", c_void_p), ("numOfRangeDropped", c_size_t)
)
GetCounterDataInfo = parameters(
    "CUpti_RangeProfiler_GetCounterDataInfo_Params",
    ("pCounterDataImage", c_void_p),
    ("counterDataImageSize", c_size_t),
    ("numTotalRanges", c_size_t),
)


class RangeProfiler:
    """Counts every kernel of the current context that runs inside the `with` block; `values()` after it.

    Nothing else may count on the device meanwhile. Raises LibraryError, with the remedy where rights are missing.
    """

    def __init__(self, chip: str, *, most_kernels: int, metrics: Mapping[str, Metric] = RANGES) -> None:
        self._metrics = dict(metrics)
        self._names = [metric.name for metric in self._metrics.values()]
        perfworks.ready_devices()
        self._context = current_context()
        self._host = MetricHost(chip, ProfilerType.RANGES, _availability(self._context))
        self._most = most_kernels
        self._object: Any = None
        self._values: list[dict[str, float]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except LibraryError:
            self._close()
            raise
        return self

    def _start(self) -> None:
        self._config = self._host.configure(self._names)  # CUPTI reads it until the end
        enabled: Any = Enable(ctx=self._context)
        call("cuptiRangeProfilerEnable", enabled)
        self._object = enabled.pRangeProfilerObject
        names = names_array(self._names)
        sized: Any = GetCounterDataSize(0, None, self._object, names, len(self._names), self._most, self._most)
        call("cuptiRangeProfilerGetCounterDataSize", sized)
        self._image = bytes_array(sized.counterDataSize)
        address, size = ctypes.addressof(self._image), len(self._image)
        call("cuptiRangeProfilerCounterDataImageInitialize", InitializeImage(0, None, self._object, size, address))
        config: Any = SetConfig(
            pRangeProfilerObject=self._object,
            configSize=len(self._config),
            pConfig=ctypes.addressof(self._config),
            counterDataImageSize=size,
            pCounterDataImage=address,
            range=_AUTO_RANGE,
            replayMode=_KERNEL_REPLAY,
            maxRangesPerPass=self._most,
            numNestingLevels=1,
            minNestingLevel=1,
        )
        call("cuptiRangeProfilerSetConfig", config)
        call("cuptiRangeProfilerStart", Start(pRangeProfilerObject=self._object))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            call("cuptiRangeProfilerStop", Stop(pRangeProfilerObject=self._object))
            if kind is None:
                self._values = self._decode()
        finally:
            self._close()

    def _decode(self) -> list[dict[str, float]]:
        decoded: Any = DecodeData(pRangeProfilerObject=self._object)
        call("cuptiRangeProfilerDecodeData", decoded)
        if decoded.numOfRangeDropped:
            raise LibraryError(
                f"{decoded.numOfRangeDropped} kernels were not counted: room was made for {self._most}",
                hints=["raise most_kernels"],
            )
        told: Any = GetCounterDataInfo(0, None, ctypes.addressof(self._image), len(self._image))
        call("cuptiRangeProfilerGetCounterDataInfo", told)
        return [self._columns(index) for index in range(told.numTotalRanges)]

    def _columns(self, index: int) -> dict[str, float]:
        values = self._host.evaluate(self._names, self._image, index)
        pairs = zip(self._metrics.items(), values, strict=True)
        return {column: metric.column_value(value) for (column, metric), value in pairs}

    def _close(self) -> None:
        if self._object is not None:
            call("cuptiRangeProfilerDisable", Start(pRangeProfilerObject=self._object))
            self._object = None
        self._host.close()

    def values(self) -> list[dict[str, float]]:
        """The columns of each kernel, in the order of their launches."""
        return self._values


def current_context() -> int:
    """The handle of this thread's CUDA context. Raises LibraryError where there is none."""
    context = c_void_p()
    try:
        result = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    except OSError as error:
        raise LibraryError(f"there is no NVIDIA driver: {error}", hints=["install the NVIDIA driver"]) from error
    if result or not context.value:
        raise LibraryError("this thread has no CUDA context", hints=["run the kernels once before they are counted"])
    return context.value


def _availability(context: int) -> ctypes.Array[c_uint8]:
    """The context's image of what may be counted."""
    given: Any = GetCounterAvailability(ctx=context)
    call("cuptiProfilerGetCounterAvailability", given)
    image = bytes_array(given.counterAvailabilityImageSize)
    given.pCounterAvailabilityImage = ctypes.addressof(image)
    call("cuptiProfilerGetCounterAvailability", given)
    return image


def counted(
    run: Callable[[], object], chip: str, kernels: int, metrics: Mapping[str, Metric] = RANGES
) -> list[dict[str, float]]:
    """The columns of `metrics` of each of the `kernels` that `run()` launches, in order. `run` must launch those and no
    others, and wait for them. Raises LibraryError where another number ran, since nobody knows then which is which.
    """
    with RangeProfiler(chip, most_kernels=kernels + 64, metrics=metrics) as profiler:
        run()
    values = profiler.values()
    if len(values) != kernels:
        raise LibraryError(f"{len(values)} kernels ran where {kernels} were to be counted")
    return values
