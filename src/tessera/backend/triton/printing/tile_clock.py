"""Clock reads around the tiles of a timed kernel, into the memory that `backend/tile_times.py` lays out.

The reads wait neither for loads and stores in flight nor for a program's other warps, so edges of tiles are blurred.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tessera.backend.tile_times import END, MULTIPROCESSOR, RECORD_WORDS, START
from tessera.backend.triton.printing.printer import Printer
from tessera.ir.tile import operations as tile
from tessera.target import Target

PARAMETER: Final = "tile_times"
"""The last parameter of a timed kernel: the memory's address."""
CLOCK: Final = "tile_clock"
PLACE: Final = "tile_multiprocessor"
NAMES: Final = (PARAMETER, CLOCK, PLACE)

_NVIDIA = f"""@triton.jit
def {CLOCK}():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def {PLACE}():
    return tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)"""
# "PTX ISA", special registers: nanoseconds, in steps that depend on the GPU.

_AMD = f"""@triton.jit
def {CLOCK}():
    return tl.inline_asm_elementwise(
        "s_memrealtime $0\\ns_waitcnt lgkmcnt(0)", "=s", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def {PLACE}():
    return -1"""
# "AMD Instinct MI300 Instruction Set Architecture", S_MEMREALTIME: 100 MHz. Scalar memory counts in lgkmcnt, which
# Triton 3.6's own `memrealtime` does not wait for.


def is_timed(grid: tile.ParallelOp) -> bool:
    """Whether a grid's kernel times its tiles."""
    kernel = grid.parent_op()
    return isinstance(kernel, tile.KernelOp) and kernel.timed is not None


def functions(target: Target) -> str:
    """The functions that timed kernels call."""
    return _AMD if target.arch.startswith("gfx") else _NVIDIA


def tick_ns(target: Target) -> float:
    """Nanoseconds in which the clock counts one."""
    return 10.0 if target.arch.startswith("gfx") else 1.0


@contextmanager
def reading(p: Printer, number: str, timed: bool) -> Iterator[None]:
    """Lines inside the `with` are tile `number` of the grid; where the kernel is `timed`, they stand between reads."""
    if not timed:
        yield
        return
    start, end, record = (p.name(hint) for hint in ("tile_start", "tile_end", "tile_record"))
    p.line(f"{start} = {CLOCK}()")
    yield
    p.line(f"{end} = {CLOCK}()")
    p.line(f"{record} = {PARAMETER} + {number} * {RECORD_WORDS}")
    for word, value in ((START, start), (END, end), (MULTIPROCESSOR, f"{PLACE}()")):
        p.line(f"tl.store({record} + {word}, {value})")
