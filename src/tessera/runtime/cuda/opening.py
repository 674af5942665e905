"""From the number of a CUDA device to its driver, or to the reason why there is none."""

from __future__ import annotations

from importlib import metadata

import torch

from tessera.errors import DeviceError, UnsupportedTargetError
from tessera.runtime.cuda.driver import CudaDriver
from tessera.runtime.cuda.libcuda import Libcuda
from tessera.runtime.cuda.memory import TorchAllocator
from tessera.system.distribution import installing
from tessera.target import detect_gpu
from tessera.target.stored_ceilings import with_stored

_WITHOUT_GPU = 'device="interpreter" checks kernels without a GPU'


def open_device(number: int) -> CudaDriver:
    """The driver of torch's CUDA device `number`.

    Raises UnsupportedTargetError where torch has no CUDA, Triton is missing, the NVIDIA driver is missing or too old,
    or kernels cannot be made for the device; DeviceError where there is no such device.
    """
    _require_packages()
    library = Libcuda.open()
    count = torch.cuda.device_count()
    if not 0 <= number < count:
        seen = f"only cuda:0 to cuda:{count - 1}" if count > 1 else "only cuda:0" if count else "none"
        raise DeviceError(
            f"there is no device cuda:{number}: torch sees {seen}",
            hints=["CUDA_VISIBLE_DEVICES hides devices", "nvidia-smi lists them", _WITHOUT_GPU],
        )
    target = with_stored(detect_gpu(number))
    return CudaDriver(f"cuda:{number}", number, target, library, TorchAllocator(number))


def _require_packages() -> None:
    if torch.version.hip is not None:
        raise UnsupportedTargetError(
            "kernels are compiled for AMD's GPUs, and not launched on them yet",
            hints=["`tessera compile --target gfx942` shows what they become", _WITHOUT_GPU],
        )
    if torch.version.cuda is None:
        raise UnsupportedTargetError(
            f"torch {torch.__version__} is built without CUDA",
            hints=["install a build of torch with CUDA: https://pytorch.org/get-started", _WITHOUT_GPU],
        )
    try:
        metadata.version("triton")
    except metadata.PackageNotFoundError:
        raise UnsupportedTargetError(
            "Triton is not installed, which compiles kernels for GPUs", hints=[installing("triton")]
        ) from None
