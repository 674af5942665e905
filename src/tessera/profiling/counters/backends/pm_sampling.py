"""PM sampling of NVIDIA GPUs: occupancy, issue, tensor cores and DRAM of a device while programs run, in one pass.

The hardware samples every millisecond; a reading is the mean of the samples since the one before. Sources:
cupti_pmsampling.h and cupti_target.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from tessera.errors import LibraryError
from tessera.profiling.counters import perfworks
from tessera.profiling.counters.gpu_sensors import variable_of
from tessera.profiling.counters.gpus import refused
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject
from tessera.profiling.counters.nvidia_metrics import SAMPLED
from tessera.profiling.counters.perfworks import MetricHost, ProfilerType, bytes_array, call, names_array, parameters

INTERVAL_NS: Final = 1_000_000
_INTERVAL_CLOCKS: Final = 1_400_000  # about a millisecond of a GPU whose sampling cannot be set in time
_BY_CLOCK: Final = ("GA100",)
_BUFFER_BYTES: Final = 16 * 2**20
_MOST_SAMPLES: Final = 4096  # in one decoding; readings are at most seconds apart
_KEEP_LATEST: Final = 1
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

GetChipName = parameters("CUpti_Device_GetChipName_Params", ("deviceIndex", c_size_t), ("pChipName", c_char_p))
GetCounterAvailability = parameters(
    "CUpti_PmSampling_GetCounterAvailability_Params",
    ("deviceIndex", c_size_t),
    ("counterAvailabilityImageSize", c_size_t),
    ("pCounterAvailabilityImage", c_void_p),
)
Enable = parameters("CUpti_PmSampling_Enable_Params", ("deviceIndex", c_size_t), ("pPmSamplingObject", c_void_p))
Switch = parameters("CUpti_PmSampling_Start_Params", ("pPmSamplingObject", c_void_p))  # also of Stop and Disable
SetConfig = parameters(
    "CUpti_PmSampling_SetConfig_Params",
    ("pPmSamplingObject", c_void_p),
    ("configSize", c_size_t),
    ("pConfig", c_void_p),
    ("hardwareBufferSize", c_size_t),
    ("samplingInterval", c_uint64),
    ("triggerMode", c_int),
    ("hwBufferAppendMode", c_int),
)
GetCounterDataSize = parameters(
    "CUpti_PmSampling_GetCounterDataSize_Params",
    ("pPmSamplingObject", c_void_p),
    ("pMetricNames", ctypes.POINTER(c_char_p)),
    ("numMetrics", c_size_t),
    ("maxSamples", c_uint32),
    ("counterDataSize", c_size_t),
)
InitializeImage = parameters(
    "CUpti_PmSampling_CounterDataImage_Initialize_Params",
    ("pPmSamplingObject", c_void_p),
    ("counterDataSize", c_size_t),
    ("pCounterData", c_void_p),
)
DecodeData = parameters(
    "CUpti_PmSampling_DecodeData_Params",
    ("pPmSamplingObject", c_void_p),
    ("pCounterDataImage", c_void_p),
    ("counterDataImageSize", c_size_t),
    ("decodeStopReason", c_int),
    ("overflow", c_uint8),
)
GetCounterDataInfo = parameters(
    "CUpti_PmSampling_GetCounterDataInfo_Params",
    ("pCounterDataImage", c_void_p),
    ("counterDataImageSize", c_size_t),
    ("numTotalSamples", c_size_t),
    ("numPopulatedSamples", c_size_t),
    ("numCompletedSamples", c_size_t),
)


def chip_of(device: int) -> str:
    """The chip of a device by its CUDA number, "GH100". Raises LibraryError where CUPTI does not know it."""
    perfworks.ready_devices()
    given: Any = GetChipName(deviceIndex=device)
    call("cuptiDeviceGetChipName", given)
    return str(given.pChipName.decode())


def availability(device: int) -> ctypes.Array[c_uint8]:
    """The device's image of what it lets be counted. Raises LibraryError, where rights are missing with the remedy."""
    perfworks.ready_devices()
    given: Any = GetCounterAvailability(deviceIndex=device)
    call("cuptiPmSamplingGetCounterAvailability", given)
    image = bytes_array(given.counterAvailabilityImageSize)
    given.pCounterAvailabilityImage = ctypes.addressof(image)
    call("cuptiPmSamplingGetCounterAvailability", given)
    return image


class PmSampler:
    """Samples one device from now on. Raises LibraryError where it cannot, and has given everything back then."""

    min_interval_ms = 5.0

    def __init__(self, device: int) -> None:
        self.fields: Sequence[Field] = [Field(name, metric.unit, f"cuda:{device}") for name, metric in SAMPLED.items()]
        self._metrics = [metric.name for metric in SAMPLED.values()]
        chip = chip_of(device)
        self._host = MetricHost(chip, ProfilerType.PM_SAMPLING, availability(device))
        self._object: Any = None
        self._running = False
        try:
            self._start(device, chip)
        except LibraryError:
            self.close()
            raise

    def _start(self, device: int, chip: str) -> None:
        config = self._host.configure(self._metrics)
        enabled: Any = Enable(deviceIndex=device)
        call("cuptiPmSamplingEnable", enabled)
        self._object = enabled.pPmSamplingObject
        by_time = chip not in _BY_CLOCK
        call(
            "cuptiPmSamplingSetConfig",
            SetConfig(
                pPmSamplingObject=self._object,
                configSize=len(config),
                pConfig=ctypes.addressof(config),
                hardwareBufferSize=_BUFFER_BYTES,
                samplingInterval=INTERVAL_NS if by_time else _INTERVAL_CLOCKS,
                triggerMode=int(by_time),
                hwBufferAppendMode=_KEEP_LATEST,
            ),
        )
        sized: Any = GetCounterDataSize(
            0, None, self._object, names_array(self._metrics), len(self._metrics), _MOST_SAMPLES
        )
        call("cuptiPmSamplingGetCounterDataSize", sized)
        self._image = bytes_array(sized.counterDataSize)
        self._empty_image()
        call("cuptiPmSamplingStart", Switch(pPmSamplingObject=self._object))
        self._running = True

    def _empty_image(self) -> None:
        emptied = InitializeImage(0, None, self._object, len(self._image), ctypes.addressof(self._image))
        call("cuptiPmSamplingCounterDataImageInitialize", emptied)

    def read(self) -> Sequence[float]:
        image, size = ctypes.addressof(self._image), len(self._image)
        try:
            call("cuptiPmSamplingDecodeData", DecodeData(0, None, self._object, image, size))
            told: Any = GetCounterDataInfo(pCounterDataImage=image, counterDataImageSize=size)
            call("cuptiPmSamplingGetCounterDataInfo", told)
            rows = [self._host.evaluate(self._metrics, self._image, index) for index in range(told.numCompletedSamples)]
            self._empty_image()
        except LibraryError as error:
            raise OSError(str(error.message)) from error
        if not rows:
            return [math.nan] * len(self._metrics)
        means = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
        return [metric.column_value(mean) for metric, mean in zip(SAMPLED.values(), means, strict=True)]

    def close(self) -> None:
        if self._running:
            self._running = False
            call("cuptiPmSamplingStop", Switch(pPmSamplingObject=self._object))
        if self._object is not None:
            call("cuptiPmSamplingDisable", Switch(pPmSamplingObject=self._object))
            self._object = None
        self._host.close()


def device_count(subject: Subject) -> int:
    """The GPUs that CUDA sees. This process uses CUDA already or samples another one, else LibraryError: initializing
    CUDA here would keep children of this process from using it.
    """
    if subject.own:
        import torch

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise LibraryError("CUDA is not in use in this process", hints=["run something on the GPU first"])
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LibraryError(f"there is no NVIDIA driver: {error}", hints=["install the NVIDIA driver"]) from error
    count = c_int()
    result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if result:
        raise LibraryError(f"CUDA does not start: error {result}", hints=["`nvidia-smi` tells more"])
    return count.value


def require_same_numbers(subject: Subject) -> None:
    """Raises LibraryError where another process counts GPUs differently: kernels on its "cuda:0" would get the counters
    of another device.
    """
    seen, own = variable_of(subject, _VISIBLE), variable_of(Subject(), _VISIBLE)
    if seen != own:
        remedy = f"unset {_VISIBLE}" if seen is None else f"{_VISIBLE}={seen} tessera-prof ..."
        raise LibraryError(
            f"the program numbers GPUs by {_VISIBLE}={seen or ''}, this process by {_VISIBLE}={own or ''}",
            hints=[remedy],
        )


@dataclass(frozen=True)
class PmSamplingBackend:
    """What the SMs and the memory of each GPU do, for all programs on it together."""

    name: str = "pm-sampling"
    activities: frozenset[str] = frozenset({"gpu"})

    def devices(self, subject: Subject) -> list[int]:
        """Devices that can be sampled, by this process' CUDA numbers, which are the subject's, too. Raises LibraryError
        with the first reason.
        """
        perfworks.library()
        require_same_numbers(subject)
        found = list(range(device_count(subject)))
        if not found:
            raise LibraryError("CUDA sees no GPU", hints=["set CUDA_VISIBLE_DEVICES, or unset it"])
        for device in found:
            availability(device)
        return found

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        try:
            self.devices(subject)
        except LibraryError as error:
            units = {name: metric.unit for name, metric in SAMPLED.items()}
            return refused(units, "NVIDIA", error.message, "; ".join(error.hints))
        return {name: Capability(metric.unit) for name, metric in SAMPLED.items()}

    def open(self, subject: Subject) -> Sequence[Sampler]:
        samplers: list[Sampler] = []
        try:
            for device in self.devices(subject):
                samplers.append(PmSampler(device))
        except LibraryError:
            for sampler in samplers:
                sampler.close()
            return []
        return samplers


BACKEND = PmSamplingBackend()
