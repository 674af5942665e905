"""Tile IR whose kernel relies on more than it says: what a call promises of its operands."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.ir.tile.divisors import divisors_of, promising, uniform
from tessera.ir.tile.operations import find_kernel


def aligned(module: ModuleOp, others: int = 1, note: str = "") -> ModuleOp:
    """The module with addresses that 16 divides, and with extents and strides that `others` divides; a kernel that
    says itself what it relies on keeps to that.
    """
    kernel = find_kernel(module)
    return promising(module, uniform(kernel, 16, others) if kernel.divisors is None else divisors_of(kernel), note)
