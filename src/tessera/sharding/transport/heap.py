"""A heap: memory of this rank that the other ranks of its host can read.

It is one sparse memfd as large as the machine's memory, mapped once; pages are there when they are first written. So
what is allocated lies where peers find it by its offset, nothing needs /dev/shm, and nothing is left after a kill.
Others map it without the right to write. A fork of the program shares it with its parent: what the fork writes to such
a tensor, the parent sees.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections import deque
from typing import Final

import numpy
import torch

from tessera.errors import MemoryLimitError
from tessera.sharding.transport.lanes import SLOT_BYTES
from tessera.system import forks

_ALIGNED: Final = 4096
_IDLE_BYTES: Final = 256 << 20
"""How much free memory keeps its pages."""


def size_bytes() -> int:
    """How large a heap is: all memory there is, of which the machine gives what is written."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class PeerHeap:
    """The heap of another rank, to be read."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
        self.address = int(numpy.frombuffer(self._memory, numpy.uint8, 1).ctypes.data)


class Heap:
    """This rank's own heap."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("tessera-heap", os.MFD_CLOEXEC)
        self._size = size_bytes()
        os.truncate(self.descriptor, self._size)
        self._memory = mmap.mmap(self.descriptor, self._size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._lock = forks.lock()
        self._end = 0
        self._free: dict[int, list[tuple[int, bool]]] = {}
        self._returned: deque[tuple[int, int]] = deque()
        self._idle = 0

    def offset(self, x: torch.Tensor) -> int | None:
        """Where a tensor's memory begins in the heap; None where it lies elsewhere."""
        offset = x.data_ptr() - self.address
        return offset if 0 <= offset < self._size else None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor in the heap, whose memory is used again when no tensor needs it any more."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        size = _rounded(count * dtype.itemsize)
        offset = self._take(size)
        memory = (ctypes.c_uint8 * size).from_address(self.address + offset)
        # The storage of the tensor and of all its views keeps `memory`; a deque takes it from whichever thread ends it.
        weakref.finalize(memory, self._returned.append, (offset, size)).atexit = False
        return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)

    def empty_or_small(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `empty`; what no peer reads in place, because it is so little, lies elsewhere."""
        small = math.prod(shape) * dtype.itemsize <= SLOT_BYTES
        return torch.empty(shape, dtype=dtype, device="cpu") if small else self.empty(shape, dtype)

    def _take(self, size: int) -> int:
        with self._lock:
            while self._returned:
                self._put(*self._returned.popleft())
            if free := self._free.get(size):
                offset, has_pages = free.pop()
                self._idle -= size if has_pages else 0
                return offset
            if self._end + size > self._size:
                raise MemoryLimitError(f"the memory of collectives is full: {self._end} bytes, {size} more")
            offset, self._end = self._end, self._end + size
            return offset

    def _put(self, offset: int, size: int) -> None:
        keeps_pages = self._idle + size <= _IDLE_BYTES
        if keeps_pages:
            self._idle += size
        else:
            self._memory.madvise(mmap.MADV_REMOVE, offset, size)
        self._free.setdefault(size, []).append((offset, keeps_pages))


def _rounded(size: int) -> int:
    """Sizes in steps of an eighth of a power of two, so that few are kept apart."""
    step = max(_ALIGNED, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
