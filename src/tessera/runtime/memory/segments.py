"""Large blocks: segments mapped from the system, split and joined, with a count of the bytes that may be resident.

A segment is one private anonymous mapping, as large as the request that made it (rounded up to pages). A free block
serves a request of at least 8/9 of its size whole; of a larger one, the request's part is split off. Neighbouring
free blocks of a segment are joined at once. A free block can be *purged*: its pages go back to the system, its
addresses stay.

Nothing here is thread-safe: the allocator holds its lock around every call.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

PAGE: Final = mmap.PAGESIZE
HUGE_PAGE: Final = 2 * 1024 * 1024
"""Segments of at least this size start on such a boundary and ask for transparent huge pages of this size."""

WHOLE_BLOCK_EXCESS: Final = 8
"""A free block is handed out whole when it exceeds the request by no more than 1/8 of the request (12.5 %)."""


def round_to_pages(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages, at least one."""
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


class Segment:
    """One mapping. `address` is the first usable byte; what lies before it in the mapping is alignment and never
    touched.
    """

    __slots__ = ("_export", "address", "memory", "nbytes", "offset")

    def __init__(self, nbytes: int) -> None:
        aligned = nbytes >= HUGE_PAGE
        slack = HUGE_PAGE - PAGE if aligned else 0
        # Private: the default of Python's mmap is shared memory, which a fork would share too and huge pages do not
        # back.
        self.memory = mmap.mmap(-1, nbytes + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._export: ctypes.c_char | None = ctypes.c_char.from_buffer(self.memory)
        base = ctypes.addressof(self._export)
        self.offset = -base % HUGE_PAGE if aligned else 0
        self.address = base + self.offset
        self.nbytes = nbytes
        if aligned and hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE, self.offset, nbytes)

    def purge(self, address: int, nbytes: int) -> None:
        """Gives the pages of a range back to the system; the range reads as zeros when it is next touched."""
        self.memory.madvise(mmap.MADV_DONTNEED, self.offset + address - self.address, nbytes)

    def unmap(self) -> None:
        """Gives the whole mapping back. No address of it may be used again."""
        self._export = None
        self.memory.close()


@dataclass(slots=True, eq=False)
class Block:
    """A range of a segment, free or handed out. `resident`: how many of its bytes may have pages behind them."""

    segment: Segment
    address: int
    nbytes: int
    resident: int
    free: bool
    before: Block | None = None
    after: Block | None = None


def _is_split(block: Block, nbytes: int) -> bool:
    """Whether a request of `nbytes` gets only a part of `block`."""
    return block.nbytes - nbytes > nbytes // WHOLE_BLOCK_EXCESS


class SegmentPool:
    """All segments of the process, and the free blocks in them."""

    def __init__(self) -> None:
        self._used: dict[int, Block] = {}
        self._free: OrderedDict[int, Block] = OrderedDict()  # by address, longest free first
        self._by_size: list[tuple[int, int]] = []  # (nbytes, address) of free blocks, ascending
        self.segments = 0
        self.allocated = 0
        self.reserved = 0
        self.system_allocations = 0
        self.system_releases = 0
        self.purges = 0

    def take(self, nbytes: int) -> int | None:
        """The address of a free block for `nbytes` (whole pages), or None when no free block is large enough."""
        at = bisect_left(self._by_size, (nbytes, 0))
        if at == len(self._by_size):
            return None
        block = self._free[self._by_size[at][1]]
        self._remove_free(block)
        if _is_split(block, nbytes):
            self._split(block, nbytes)
        self.reserved += block.nbytes - block.resident
        block.resident = block.nbytes
        self._hand_out(block)
        return block.address

    def bytes_at(self, address: int) -> int:
        """The size of a block that is handed out."""
        return self._used[address].nbytes

    def growth_of(self, nbytes: int) -> int:
        """By how many bytes `take(nbytes)` or, without a fitting block, `map(nbytes)` raises `reserved`."""
        at = bisect_left(self._by_size, (nbytes, 0))
        if at == len(self._by_size):
            return nbytes
        block = self._free[self._by_size[at][1]]
        missing = block.nbytes - block.resident
        return min(nbytes, missing) if _is_split(block, nbytes) else missing

    def map(self, nbytes: int) -> int:
        """The address of a new segment of `nbytes` (whole pages), handed out. Raises OSError when the system
        refuses.
        """
        segment = Segment(nbytes)
        self.segments += 1
        self.system_allocations += 1
        self.reserved += nbytes
        self._hand_out(Block(segment, segment.address, nbytes, nbytes, free=False))
        return segment.address

    def give_back(self, address: int) -> None:
        """Takes a handed-out block back into the pool and joins it with free neighbours."""
        block = self._used.pop(address)
        self.allocated -= block.nbytes
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._remove_free(neighbour)
                block = self._join(block, neighbour)
        self._insert_free(block)

    def release(self, nbytes: int) -> int:
        """Returns cached memory to the system, longest unused first, until `nbytes` are returned; gives the bytes
        returned.

        A segment that is free as a whole is unmapped; a free part of a segment in use is purged.
        """
        returned = 0
        for block in list(self._free.values()):
            if returned >= nbytes:
                break
            returned += self._release_block(block)
        return returned

    def _release_block(self, block: Block) -> int:
        resident = block.resident
        if block.before is None and block.after is None:
            self._remove_free(block)
            block.segment.unmap()
            self.segments -= 1
            self.system_releases += 1
        elif resident:
            block.segment.purge(block.address, block.nbytes)
            block.resident = 0
            self.purges += 1
        self.reserved -= resident
        return resident

    def _hand_out(self, block: Block) -> None:
        block.free = False
        self._used[block.address] = block
        self.allocated += block.nbytes

    def _insert_free(self, block: Block) -> None:
        block.free = True
        self._free[block.address] = block
        insort(self._by_size, (block.nbytes, block.address))

    def _remove_free(self, block: Block) -> None:
        del self._free[block.address]
        del self._by_size[bisect_left(self._by_size, (block.nbytes, block.address))]

    def _split(self, block: Block, nbytes: int) -> None:
        """Cuts `block` to `nbytes`; the rest becomes a free block. Which pages were purged is not known: the count is
        kept.
        """
        rest_bytes = block.nbytes - nbytes
        rest = Block(
            block.segment, block.address + nbytes, rest_bytes, min(block.resident, rest_bytes), True, block, block.after
        )
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.nbytes = nbytes
        block.resident -= rest.resident
        self._insert_free(rest)

    def _join(self, one: Block, other: Block) -> Block:
        """One block in place of two neighbours, neither of them in the free index."""
        low, high = (one, other) if one.address < other.address else (other, one)
        low.nbytes += high.nbytes
        low.resident += high.resident
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        return low
