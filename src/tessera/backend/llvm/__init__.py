"""The LLVM backend: Tile IR to machine code of CPUs, through llvmlite."""

from typing import Final

from tessera.backend.contract import CpuBackend
from tessera.backend.llvm.backend import LLVMBackend

__all__ = ["BACKEND", "LLVMBackend"]

BACKEND: Final[CpuBackend] = LLVMBackend()
