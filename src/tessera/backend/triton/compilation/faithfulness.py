"""Whether a compiled kernel is what its Tile IR asked for: Triton drops what it cannot do without a word.

Triton 3.6 ignores warp specialization with 8 warps on Hopper, eviction policies of loads that it makes asynchronous,
and descriptors before Hopper, to name what schedules ask for. The signs are in the compiled code and its metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tessera.ir.tile import operations as tile


class Compiled(Protocol):
    """What is looked at of a compiled kernel: `static.StaticFacts`."""

    @property
    def warps(self) -> int:
        """Warps of a block, those that only load among them."""

    @property
    def registers(self) -> int:
        """Registers of a thread."""

    @property
    def tensor_memory_columns(self) -> int:
        """Columns of Blackwell's tensor memory of a block."""

    @property
    def instructions(self) -> Mapping[str, int]:
        """How often instructions that matter occur."""

    @property
    def operations(self) -> Mapping[str, int]:
        """How often operations of Triton's dialects occur."""


@dataclass(frozen=True)
class CompilerRequests:
    """What a kernel's Tile IR asks of the compiler. `columns` are those of tensor memory that its accumulators need."""

    warps: int | None
    specialized: bool
    fused: bool
    descriptors: bool
    evictions: frozenset[str]
    max_registers: int | None
    columns: int

    @staticmethod
    def of(kernel: tile.KernelOp) -> CompilerRequests:
        """The wishes that stand in a kernel."""
        loops = [op for op in kernel.walk() if isinstance(op, (tile.ParallelOp, tile.ForOp))]
        accesses = [op for op in kernel.walk() if isinstance(op, (tile.LoadOp, tile.StoreOp))]
        products = [op for op in kernel.walk() if isinstance(op, tile.MmaOp)]
        grids = [op.grid.data for op in loops if isinstance(op, tile.ParallelOp) and op.grid is not None]
        buffers = 1 if kernel.accumulators is None else kernel.accumulators.value.data
        return CompilerRequests(
            warps=None if kernel.warps is None else kernel.warps.value.data,
            specialized=any(op.warp_specialize is not None for op in loops),
            fused="fused" in grids,
            descriptors=any(op.access is not None for op in accesses),
            evictions=frozenset(op.eviction.data for op in accesses if op.eviction is not None),
            max_registers=None if kernel.max_registers is None else kernel.max_registers.value.data,
            columns=max((buffers * op.n.value.data for op in products), default=0) if buffers > 1 else 0,
        )


def ignored(wishes: CompilerRequests, compiled: Compiled) -> list[str]:
    """The wishes that the compiler did not heed, one sentence each; none for a kernel as it was asked for."""
    return list(_ignored(wishes, compiled))


def _ignored(wishes: CompilerRequests, compiled: Compiled) -> Iterator[str]:
    found = compiled.instructions
    if wishes.specialized and not found.get("setmaxnreg"):
        yield f"warp_specialize was dropped: all {compiled.warps} warps load and compute"
    if not wishes.specialized and wishes.warps not in (None, compiled.warps):
        yield f"a block has {compiled.warps} warps, not {wishes.warps}"
    if wishes.descriptors and not found.get("cp.async.bulk.tensor"):
        yield "descriptors were dropped: threads load and store by addresses"
    if wishes.fused and compiled.operations.get("scf.if", 0) < 2:
        yield "the fused grid was dropped: the loop inside is not joined to the walk over tiles"
    for policy in sorted(wishes.evictions):
        if not found.get(f"evict_{policy}"):
            yield f"the eviction policy {policy!r} was dropped, as asynchronous copies have none"
    if wishes.max_registers is not None and (compiled.registers > wishes.max_registers or not found.get("maxnreg")):
        yield f"max_registers was dropped: a thread has {compiled.registers}, not at most {wishes.max_registers}"
    if compiled.tensor_memory_columns < wishes.columns:
        yield f"accumulators share {compiled.tensor_memory_columns} columns of tensor memory, not {wishes.columns}"
