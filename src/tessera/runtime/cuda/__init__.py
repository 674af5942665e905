"""NVIDIA GPUs through the CUDA driver: kernels of `GpuKernelObject`s are loaded, launched and recorded as graphs."""

from __future__ import annotations

from tessera.runtime.cuda.driver import CudaDriver
from tessera.runtime.cuda.opening import open_device

__all__ = ["CudaDriver", "open_device"]
