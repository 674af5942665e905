"""What CUDA's result codes mean to a user: a class of `tessera.errors` for each, with a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tessera.errors import (
    DeviceError,
    DeviceFaultError,
    DriverError,
    MemoryLimitError,
    TesseraError,
    UnsupportedTargetError,
)

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
NOT_READY: Final = 600

NAMES: Final[Mapping[int, str]] = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    4: "CUDA_ERROR_DEINITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    218: "CUDA_ERROR_INVALID_PTX",
    220: "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    226: "CUDA_ERROR_CONTAINED",
    400: "CUDA_ERROR_INVALID_HANDLE",
    500: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    710: "CUDA_ERROR_ASSERT",
    714: "CUDA_ERROR_HARDWARE_STACK_ERROR",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    717: "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    718: "CUDA_ERROR_INVALID_PC",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    721: "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    911: "CUDA_ERROR_EXTERNAL_DEVICE",
    912: "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    999: "CUDA_ERROR_UNKNOWN",
}
"""Results that are told apart here, or likely to be met; the driver names the others."""

FAULTS: Final = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911))
"""Results after which nothing works on the device in this process any more (the documentation of each in `cuda.h`)."""

_ANOTHER_GPU = frozenset((200, 209, 218, 222))
_BAD_DRIVER = frozenset((34, 802, 803, 804))
_NO_DEVICE = frozenset((46, 100, 101))


def failure(code: int, what: str, name: str = "", text: str = "") -> TesseraError:
    """The error for a result other than `SUCCESS` of `what` ("cuModuleLoadData", "launching kernel k").

    `name` and `text` are the driver's for the result, where it was asked.
    """
    named = NAMES.get(code) or name or f"CUDA error {code}"
    message = f"{what}: {named}{f' ({text})' if text else ''}"
    if code in FAULTS:
        return DeviceFaultError(
            f"{message}. The device's context is lost: every later CUDA call of this process fails",
            hints=[
                "restart the process",
                "CUDA reports a fault late: the kernel at fault may be an earlier one; CUDA_LAUNCH_BLOCKING=1 or "
                "compute-sanitizer finds it",
                'device="interpreter" runs the same kernels on the CPU',
            ],
        )
    if code == 2:
        return MemoryLimitError(message, hints=["free tensors, or empty torch's cache: torch.cuda.empty_cache()"])
    if code in _ANOTHER_GPU:
        return UnsupportedTargetError(
            f"{message}: the kernel was made for another GPU, or this driver is too old for it",
            hints=["`tessera doctor` shows the GPU and its driver"],
        )
    if code in _BAD_DRIVER:
        return UnsupportedTargetError(message, hints=["install the NVIDIA driver that fits this GPU and this system"])
    if code in _NO_DEVICE:
        return DeviceError(message, hints=["nvidia-smi lists GPUs; CUDA_VISIBLE_DEVICES may hide them"])
    return DriverError(message)
