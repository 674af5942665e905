"""Reducing operands of all ranks, which lie in this process's reach, in rank order."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from tessera.sharding.exchange.communicator import Reduction, combined
from tessera.sharding.transport.native import Reduce, native


def reduce_into(result: torch.Tensor, operands: Sequence[torch.Tensor], op: Reduction) -> None:
    """Writes what `combined` gives into contiguous memory: by native code, which makes nothing in between, or torch."""
    if result.numel() == 0:
        return
    function = native().reduction(result.dtype, op)
    if function is None:
        result.copy_(combined(operands, op))
        return
    parts = [operand.contiguous() for operand in operands]
    addresses = (ctypes.c_void_p * len(parts))(*[part.data_ptr() for part in parts])
    Reduce(function)(result.data_ptr(), ctypes.addressof(addresses), len(parts), result.numel())
