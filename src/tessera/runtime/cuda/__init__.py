"""NVIDIA GPUs through the CUDA driver: kernels of `GpuKernelObject`s are loaded, launched and recorded as graphs.

`libcuda.py` holds the driver library's prototypes, checks every call, and is what a test's fake replaces. `results.py`
says what each result means to a user, `parameters.py` lays a launch's numbers out as the machine code takes them,
`kernels.py` prepares a launch once and rewrites only what changed, `graphs.py` builds CUDA graphs node by node, without
capturing a stream. Memory and streams are torch's. After a fault (an illegal address) the context is lost:
`DeviceFaultError`.
"""

from __future__ import annotations

from tessera.runtime.cuda.driver import CudaDriver
from tessera.runtime.cuda.opening import open_device

__all__ = ["CudaDriver", "open_device"]
