"""What memories of programs hold, and where they lie: against pages that nobody may touch, in poison."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from tessera.dtypes import dtype_of
from tests.fuzz.program import Input, Memory
from tests.property.checking import POISON_BYTE
from tests.property.operands import Values, filled

_PAGE = mmap.PAGESIZE
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_PROT_NONE = 0


def contents(memory: Memory) -> torch.Tensor:
    """The drawn values of a memory's view, contiguous."""
    dtype = dtype_of(memory.dtype)
    if memory.below is not None:
        chance = torch.Generator().manual_seed(memory.seed)
        return torch.randint(0, memory.below, memory.shape, generator=chance).to(dtype.torch)
    if dtype.kind == "complex":
        parts = [filled(memory.shape, dtype_of("fp64"), "ordinary", 2 * memory.seed + part) for part in range(2)]
        return torch.complex(parts[0], parts[1]).to(dtype.torch)
    values: Values = memory.values  # type: ignore[assignment] # one of them, as drawn
    return filled(memory.shape, dtype, values, memory.seed)


def fill(tensor: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Writes a memory's drawn values into its view of a tensor of its elements, and gives the tensor."""
    if 0 not in memory.shape:
        view, drawn = tensor.as_strided(memory.shape, memory.strides, memory.offset), contents(memory)
        for axis, stride in enumerate(memory.strides):
            if not stride and memory.shape[axis] > 1:  # where a view repeats elements, its first ones say what they are
                view, drawn = view.narrow(axis, 0, 1), drawn.narrow(axis, 0, 1)
        view.copy_(drawn)
    return tensor


def placed(memory: Memory, at_end: bool) -> torch.Tensor:
    """A memory as one dimension of elements, its last byte before a page without access, or its first one after."""
    dtype = dtype_of(memory.dtype)
    nbytes = memory.elements * dtype.itemsize
    whole = _between_guards(nbytes, at_end) if nbytes else torch.empty(0, dtype=torch.uint8)
    return fill(whole.view(dtype.torch), memory)


def viewed(tensor: torch.Tensor, entry: Input) -> torch.Tensor:
    """An input's view of its memory."""
    return tensor.as_strided(entry.shape, entry.strides, entry.offset)


def _between_guards(nbytes: int, at_end: bool) -> torch.Tensor:
    pages = -(-nbytes // _PAGE) * _PAGE
    region = mmap.mmap(-1, pages + 2 * _PAGE)
    whole = torch.frombuffer(region, dtype=torch.uint8)
    whole[_PAGE:-_PAGE] = POISON_BYTE
    for guard in (0, _PAGE + pages):
        if _protect(whole.data_ptr() + guard, _PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    start = _PAGE + (pages - nbytes if at_end else 0)
    # A storage of its own: views are placed from its beginning.
    return torch.frombuffer(region, dtype=torch.uint8, offset=start, count=nbytes)
