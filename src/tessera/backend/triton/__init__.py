"""The Triton backend for GPUs: Tile IR in, Triton source and machine code out."""

from typing import Final

from tessera.backend.contract import GpuBackend
from tessera.backend.triton.backend import TritonBackend

__all__ = ["BACKEND", "TritonBackend"]

BACKEND: Final[GpuBackend] = TritonBackend()
