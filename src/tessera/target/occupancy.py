"""Occupancy of a GPU kernel: how many warps a multiprocessor holds at a time, and what keeps it from holding more.

Registers are given to a warp in units of 256 (compute capability 8.0 to 10.0, "CUDA Occupancy Calculator"), vector
registers of CDNA 3 in units of 8 a lane ("AMD Instinct MI300 Instruction Set Architecture").
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.target.facts import GpuLimits

_NVIDIA_UNIT, _AMD_UNIT = 256, 8 * 64
TENSOR_MEMORY_COLUMNS = 512
"""Columns of 128 words of a multiprocessor's tensor memory (compute capability 10.0; "PTX ISA", tensor memory)."""
_SYSTEM_BYTES = 1024
"""Shared memory of each block that the system takes (compute capability 8.0 and later)."""


@dataclass(frozen=True)
class Occupancy:
    """`blocks` and `warps` held by one multiprocessor, `fraction` of the warps that it could hold, and what `binds`:
    "warps", "blocks", "registers", "shared memory" or "tensor memory".
    """

    blocks: int
    warps: int
    fraction: float
    binds: str


def occupancy(
    limits: GpuLimits, warps: int, registers: int, shared_bytes: int, tensor_memory_columns: int = 0
) -> Occupancy:
    """The occupancy of blocks of `warps` warps, with `registers` a thread, `shared_bytes` and, on Blackwell, columns of
    tensor memory a block.

    A kernel that fits no multiprocessor has none: 0 blocks.
    """
    amd = limits.warp_size == 64
    unit = _AMD_UNIT if amd else _NVIDIA_UNIT
    per_warp = max(-(-registers * limits.warp_size // unit), 1) * unit
    shared = shared_bytes + (0 if amd else _SYSTEM_BYTES)
    blocks = {
        "warps": limits.max_warps // warps,
        "blocks": limits.max_blocks,
        "registers": limits.registers // (per_warp * warps) if registers <= limits.max_registers_per_thread else 0,
        "shared memory": limits.shared_bytes // shared if shared else limits.max_warps // warps,
    }
    if tensor_memory_columns:
        blocks["tensor memory"] = TENSOR_MEMORY_COLUMNS // tensor_memory_columns
    binds = min(blocks, key=lambda name: blocks[name])
    held = blocks[binds] * warps
    return Occupancy(blocks[binds], held, held / limits.max_warps, binds)
