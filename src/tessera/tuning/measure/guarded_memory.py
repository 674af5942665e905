"""Memory between pages that nobody may touch: a kernel that leaves an operand by more than a few bytes faults at once,
instead of changing what belongs to others.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any, Final

from tessera.runtime.memory.segments import HUGE_PAGE, PAGE, round_to_pages

LINE: Final = 64
"""Operands start on such a boundary, as those of torch and of Tessera's allocator do."""

LARGE: Final = 128 << 10
"""From so many bytes on, operands lie in pages as allocators place them; smaller ones end beside the upper guard."""

_NO_ACCESS: Final = 0


class GuardedMemory:
    """`nbytes` of private memory in whole pages of their own, between two pages without access.

    `before` bytes lie between the lower guard and the first byte, `after` between the last one and the upper guard,
    less than a page. Large memory that is `ours` starts as Tessera's allocator gives it out (on a huge page where it is
    one or more), other large memory as malloc does, a line into a page.

    Raises MemoryError when it cannot be had.
    """

    def __init__(self, nbytes: int, ours: bool = False) -> None:
        lead = 0 if ours or nbytes < LARGE else LINE
        body = round_to_pages(lead + nbytes)
        if nbytes < LARGE:
            lead = (body - nbytes) // LINE * LINE
        alignment = HUGE_PAGE if ours and nbytes >= HUGE_PAGE else PAGE
        try:
            self.memory = mmap.mmap(-1, body + alignment + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            export = ctypes.c_char.from_buffer(self.memory)
            base = ctypes.addressof(export)
            del export  # an exported buffer could not be closed
            self._start = -(-(base + PAGE) // alignment) * alignment
            self._body = body
            _protect(self._start - PAGE, PAGE, _NO_ACCESS)
            _protect(self._start + body, PAGE, _NO_ACCESS)
            if alignment == HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
                self.memory.madvise(mmap.MADV_HUGEPAGE, self._start - base, body)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{nbytes:,} bytes cannot be had: {error}") from error
        self.offset = self._start - base
        self.before, self.after = lead, body - lead - nbytes
        self.nbytes = nbytes

    @property
    def address(self) -> int:
        """That of the first byte."""
        return self._start + self.before

    def seal(self) -> None:
        """From now on the memory can only be read."""
        _protect(self._start, self._body, mmap.PROT_READ)


def _protect(address: int, nbytes: int, access: int) -> None:
    if _mprotect()(address, nbytes, access):
        number = ctypes.get_errno()
        raise OSError(number, "mprotect")


@cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
