"""The LLVM backend: Tile IR to machine code of CPUs, through llvmlite."""

from tessera.backend.llvm.backend import LLVMBackend

__all__ = ["LLVMBackend"]
