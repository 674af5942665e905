"""The CUDA Tile backend for NVIDIA's GPUs: Tile IR in, programs of NVIDIA's tile-level IR and machine code out."""

from typing import Final

from tessera.backend.contract import GpuBackend
from tessera.backend.cuda_tile.backend import CudaTileBackend

__all__ = ["BACKEND", "CudaTileBackend"]

BACKEND: Final[GpuBackend] = CudaTileBackend()
