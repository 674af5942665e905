"""The backend of the device "interpreter": the kernels of GPUs as Triton's interpreter runs them, without a GPU."""

from typing import Final

from tessera.backend.contract import GpuBackend
from tessera.backend.interpreter.backend import InterpreterBackend

__all__ = ["BACKEND", "InterpreterBackend"]

BACKEND: Final[GpuBackend] = InterpreterBackend()
