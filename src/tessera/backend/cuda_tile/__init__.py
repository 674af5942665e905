"""The CUDA Tile backend for NVIDIA's GPUs: Tile IR in, programs of NVIDIA's tile-level IR and machine code out.

Triton is the default one; `registry.backend_of(device, name)` gives either. `emission/` writes a `Program`
(`program/program.py`: values, operations, blocks). `program/bytecode.py` writes its binary format, which is public,
stable, and read by every later compiler: so neither NVIDIA's Python package nor its private modules are needed.
`compilation/assembler.py` runs `tileiras` on it, and `compilation/cubin.py` reads registers, stack, shared memory and
threads off the machine code.

A tile that begins at a multiple of its extents (`ir/tile/facts.py`) goes through a view, which the compiler moves by
TMA; others go by addresses and masks. Warps, their roles, stages and copies are tileiras' choice, so knobs for them
change nothing. It refuses with a CompileError: kernels that read what they write, timed ones, `erf` of fp64, loads with
`steps`. Tests interpret programs against Tile IR's interpreter, for every family.
"""

from typing import Final

from tessera.backend.contract import GpuBackend
from tessera.backend.cuda_tile.backend import CudaTileBackend

__all__ = ["BACKEND", "CudaTileBackend"]

BACKEND: Final[GpuBackend] = CudaTileBackend()
