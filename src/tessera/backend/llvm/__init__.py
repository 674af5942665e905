"""The LLVM backend: Tile IR to machine code of CPUs, through llvmlite.

`emission/` walks a kernel; `memory/`, `tiles/`, `matrix/` and `vecmath/` write its operations; `machine_code/`
compiles, loads and keeps; `native/` is the text of the runtime's own code. One generator serves AVX2, AVX-512 and NEON:
what differs is the width of a vector, the number of registers and a few instructions (`Target.features`). Code for an
Arm CPU by name (`target.arm_cpu("neoverse-n1")`) is emitted and assembled on any machine; tests/arm/emulation.py links
whole plans with a program of its own and runs them under QEMU.

What a kernel is to its callers:

    void NAME(i64 *table, i64 *descriptors, i64 worker, i64 workers, i8 *workspace)

`table[slot]` holds an address or a scalar's bits (f32 in the low 4 bytes). `descriptors` holds, argument after
argument, of a memref of rank r: slot, byte_offset, extent[r], stride[r] (strides in elements); of a scalar: slot. The
kernel computes the share of `worker` among `workers` of its `parallel` itself. `workspace` is private to the worker and
64-byte aligned. A timed kernel has one word more behind its descriptors, the address of the memory for durations.

8-bit floats are converted on bit patterns (`tiles/float8.py`). What cores do (`Target.core`) `core_facts.py` measures
once.
"""

from typing import Final

from tessera.backend.contract import CpuBackend
from tessera.backend.llvm.backend import LLVMBackend

__all__ = ["BACKEND", "LLVMBackend"]

BACKEND: Final[CpuBackend] = LLVMBackend()
