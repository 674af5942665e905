"""The caching allocator: memory for results, temporaries and workspaces.

Large operations lose most of their time to page faults when each result is fresh memory from the system, so memory
that a result gave up is kept and used again. Policy:

* Up to 32 KiB: size classes (at most 12.5 % waste above 512 bytes), cut from slabs of 256 KiB, one free list per
  class. Taking and giving back is one `list.pop` and one `list.append`, both atomic, without a lock.
* Above: whole pages from segments of their own (`segments.py`): best fit within 12.5 %, else a larger free block is
  split.
* **Cached memory never raises the peak**: before the reserve would grow past its highest value so far, or past the
  limit, unused blocks go back to the system, longest unused first. The peak with the reserve included is therefore
  what the program itself held at one time, rounded to pages and slabs.
* `empty_cache()` returns everything unused: free segments, free slabs, and idle frames of plans.

Blocks come back from finalizers, which may run at any point of any thread, also inside the allocator: they only
append to a list, and the next allocation sorts them in under the lock.
"""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

import torch

from tessera import settings
from tessera.errors import MemoryLimitError
from tessera.runtime.memory.segments import SegmentPool, round_to_pages
from tessera.runtime.memory.size_classes import CLASS_OF_GRANULES, SIZE_CLASSES, SMALL_LIMIT
from tessera.system import forks

SLAB_BYTES: Final = 256 * 1024


class Buffer:
    """Memory of `nbytes` bytes at `address` (64-byte aligned), its own until the last reference goes; then it is used
    again.

    The contents of a new buffer are arbitrary. `memory()`, and numpy through `__array_interface__`, keep the buffer
    alive. `share()` is for those who may write to it: `_version` then counts their writes, as torch's tensors do.
    """

    __slots__ = ("address", "home", "nbytes", "shared")

    shared: Any
    """Of a shared buffer the tensor, of an awaited one the work that reads it."""

    _version = 0

    def __init__(self, address: int, nbytes: int, home: list[int]) -> None:
        """`home`: the list that takes the address back."""
        self.address = address
        self.nbytes = nbytes
        self.home = home

    def __del__(self) -> None:
        self.home.append(self.address)

    def memory(self) -> ctypes.Array[ctypes.c_char]:
        """The bytes as an object with Python's buffer protocol, for `torch.frombuffer` and the like. Shares the
        memory.
        """
        view: ctypes.Array[ctypes.c_char] = _byte_array(self.nbytes).from_address(self.address)
        view.owner = self  # type: ignore[attr-defined] # ctypes arrays take attributes: this keeps the block in use
        return view

    def share(self, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """The memory as a torch tensor of one dimension, the same one at each call, of the dtype that the first call
        asked for; and its address. Writes to its views raise `_version`, where both were made under
        `export.counting_writes`.
        """
        with _sharing:
            if type(self) is Buffer:  # else another thread was faster
                # The tensor must not keep this object, which keeps the tensor: the block gets another owner.
                block = Buffer(self.address, self.nbytes, [])
                self.shared = torch.frombuffer(block.memory(), dtype=dtype)
                self.__class__ = SharedBuffer
                block.home = self.home
        return self.shared, self.address

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3: one dimension of bytes."""
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False)}


class SharedBuffer(Buffer):
    """A buffer that somebody else may write to. Its block goes back when nobody holds `shared`, or a view of it."""

    __slots__ = ()

    def __del__(self) -> None:
        """Nothing: the block is the tensor's."""

    def share(self, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """As of a buffer."""
        return self.shared, self.address

    @property
    def _version(self) -> int:  # type: ignore[override] # of a class constant: reading that is on the path of calls
        version: int = self.shared._version
        return version


class AwaitedBuffer(Buffer):
    """A buffer that work which is put off is yet to read: whoever may write to it has that done first. `shared` are
    the pieces of work.
    """

    __slots__ = ()

    def share(self, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """As of a buffer."""
        while True:
            with _sharing:  # another thread may have read, or shared, it meanwhile
                waiting = list(self.shared) if type(self) is AwaitedBuffer else []
            if not waiting:
                return self.share(dtype)
            waiting[0]()


def put_off(buffer: Buffer, work: Callable[[], None]) -> bool:
    """Says that `work` is yet to read a buffer, which it calls `read` for when it has; gives whether it may: somebody
    may write to the buffer at any time once it is shared.
    """
    with _sharing:
        if type(buffer) is Buffer:
            buffer.shared = []
            buffer.__class__ = AwaitedBuffer
        if type(buffer) is not AwaitedBuffer:
            return False
        buffer.shared.append(work)
        return True


def read(buffer: Buffer, work: Callable[[], None]) -> None:
    """Says that `work` reads the buffer no more."""
    with _sharing:
        buffer.shared.remove(work)
        if not buffer.shared:
            buffer.__class__ = Buffer


_sharing: Final = forks.lock()


@lru_cache(maxsize=256)
def _byte_array(nbytes: int) -> Any:
    return ctypes.c_char * nbytes


class CacheHolder(Protocol):
    """Something that keeps idle buffers of its own and can let go of them."""

    def drop_idle(self) -> None:
        """Lets go of every buffer that no call in progress uses."""


class SmallClass:
    """The blocks of one size: the addresses of the free ones."""

    __slots__ = ("free", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free: list[int] = []


class Allocator:
    """A caching allocator with counts. Thread-safe. The process's own is behind the functions of this module.

    `limit` gives the most bytes to reserve, or None; it is asked when memory from the system is needed.
    """

    def __init__(self, limit: Callable[[], int | None]) -> None:
        self._limit = limit
        self._lock = forks.lock()
        self._segments = SegmentPool()
        self._returned: list[int] = []
        self._classes = tuple(SmallClass(nbytes) for nbytes in SIZE_CLASSES)
        self._class_of = tuple(self._classes[index] for index in CLASS_OF_GRANULES)
        self._slabs: dict[int, int] = {}  # address -> bytes cut from it
        self._carved_bytes = 0
        self._slab_next = 0
        self._slab_end = 0
        self._peak_allocated = 0
        self._peak_reserved = 0
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of `nbytes` (0 is allowed). Raises MemoryLimitError (E_MEMORY_LIMIT) above the limit or when the
        system has no more."""
        if nbytes <= SMALL_LIMIT:
            pool = self._class_of[(nbytes + 63) >> 6]
            try:
                return Buffer(pool.free.pop(), nbytes, pool.free)
            except IndexError:
                return Buffer(self.carve(pool), nbytes, pool.free)
        with self._lock:
            address = self._allocate_pages(round_to_pages(nbytes))
            self._note_peaks()
        return Buffer(address, nbytes, self._returned)

    def small_class(self, nbytes: int) -> SmallClass | None:
        """What serves requests of so many bytes, for callers that cannot afford `allocate`; None for large ones.

        Such a caller pops an address from `free`, or `carve`s one where there is none, and makes the `Buffer` itself.
        """
        return self._class_of[(nbytes + 63) >> 6] if nbytes <= SMALL_LIMIT else None

    def stats(self) -> dict[str, int]:
        """Counts in bytes (names ending in `_bytes`) and numbers. `reserved` is what Tessera holds from the system.

        The peak of allocated memory counts small blocks by what is cut from slabs, used or not (an upper bound, so
        that taking a small block costs no counting).
        """
        with self._lock:
            self._sort_in()
            small_free = sum(len(pool.free) * pool.nbytes for pool in self._classes)
            return {
                "allocated_bytes": self._large_allocated() + self._carved_bytes - small_free,
                "reserved_bytes": self._segments.reserved,
                "peak_allocated_bytes": self._peak_allocated,
                "peak_reserved_bytes": self._peak_reserved,
                "limit_bytes": self._limit() or 0,
                "segments": self._segments.segments,
                "slabs": len(self._slabs),
                "system_allocations": self._segments.system_allocations,
                "system_releases": self._segments.system_releases,
                "purges": self._segments.purges,
            }

    def reset_peaks(self) -> None:
        """Begins the peaks anew at the present values."""
        with self._lock:
            self._sort_in()
            self._peak_allocated = self._large_allocated() + self._carved_bytes
            self._peak_reserved = self._segments.reserved

    def empty_cache(self) -> int:
        """Returns all unused memory to the system; gives the number of bytes returned."""
        for holder in list(self._holders):
            holder.drop_idle()
        with self._lock:
            before = self._segments.reserved
            self._release_unused(before)
            return before - self._segments.reserved

    def register(self, holder: CacheHolder) -> None:
        """Has `empty_cache` call `holder.drop_idle()`, as long as `holder` lives."""
        self._holders.add(holder)

    def _allocate_pages(self, nbytes: int) -> int:
        """A block of whole pages. The lock is held."""
        while self._returned:
            address = self._returned.pop()
            # The commonest case, a loop that drops a result and makes the next: no index is touched.
            if self._segments.bytes_at(address) == nbytes:
                return address
            self._segments.give_back(address)
        self._make_room(nbytes)
        taken = self._segments.take(nbytes)
        return self._map(nbytes) if taken is None else taken

    def _make_room(self, nbytes: int) -> None:
        """Returns cached memory until `nbytes` more raise neither the peak nor exceed the limit, as far as there is
        any.
        """
        pool = self._segments
        growth = pool.growth_of(nbytes)
        limit = self._limit()
        ceiling = self._peak_reserved if limit is None else min(self._peak_reserved, limit)
        if growth and pool.reserved + growth > ceiling:
            pool.release(pool.reserved + growth - ceiling)
            growth = pool.growth_of(nbytes)
        if limit is not None and pool.reserved + growth > limit:
            self._release_unused(pool.reserved)
            growth = pool.growth_of(nbytes)
            if pool.reserved + growth > limit:
                raise self._limit_error(nbytes, f"the limit is {limit:,} bytes")

    def _map(self, nbytes: int) -> int:
        try:
            return self._segments.map(nbytes)
        except (OSError, OverflowError):
            self._release_unused(self._segments.reserved)
        try:
            return self._segments.map(nbytes)
        except OSError as error:
            raise self._limit_error(nbytes, f"the system refused ({error.strerror})") from error
        except OverflowError as error:
            raise self._limit_error(nbytes, "no address space holds them") from error

    def _limit_error(self, nbytes: int, why: str) -> MemoryLimitError:
        held = self._segments.reserved
        return MemoryLimitError(
            f"{nbytes:,} bytes more were asked for, {held:,} bytes are in use, and {why}",
            hints=[
                "drop references to results that are no longer needed",
                "evaluate smaller pieces, or raise TESSERA_MEMORY_LIMIT",
            ],
        )

    def _sort_in(self) -> None:
        """Moves blocks that finalizers gave back into the pool. More may arrive meanwhile; they wait for the next
        time.
        """
        returned = self._returned
        while returned:
            self._segments.give_back(returned.pop())

    def carve(self, pool: SmallClass) -> int:
        """The address of a new block of a size class, cut from the current slab. Raises what `allocate` raises."""
        with self._lock:
            if pool.free:
                return pool.free.pop()
            if self._slab_end - self._slab_next < pool.nbytes:
                self._slab_next = self._allocate_pages(SLAB_BYTES)
                self._slab_end = self._slab_next + SLAB_BYTES
                self._slabs[self._slab_next] = 0
            address = self._slab_next
            self._slab_next += pool.nbytes
            self._slabs[self._slab_end - SLAB_BYTES] += pool.nbytes
            self._carved_bytes += pool.nbytes
            self._note_peaks()
            return address

    def _large_allocated(self) -> int:
        return self._segments.allocated - SLAB_BYTES * len(self._slabs)

    def _note_peaks(self) -> None:
        self._peak_reserved = max(self._peak_reserved, self._segments.reserved)
        self._peak_allocated = max(self._peak_allocated, self._large_allocated() + self._carved_bytes)

    def _release_unused(self, nbytes: int) -> None:
        self._sort_in()
        self._free_idle_slabs()
        self._segments.release(nbytes)

    def _free_idle_slabs(self) -> None:
        """Gives slabs without a block in use back to the pool of segments. The lock is held.

        Other threads may meanwhile give blocks back (those are seen the next time), and one that takes a block finds
        the list empty and waits for the lock in `carve`.
        """
        taken: list[tuple[SmallClass, int]] = []
        for pool in self._classes:
            while pool.free:
                taken.append((pool, pool.free.pop()))
        slabs = sorted(self._slabs)
        unused: Counter[int] = Counter()
        for pool, address in taken:
            unused[slabs[bisect_right(slabs, address) - 1]] += pool.nbytes
        idle = {slab for slab, nbytes in unused.items() if nbytes == self._slabs[slab]}
        for pool, address in taken:
            if slabs[bisect_right(slabs, address) - 1] in idle:
                self._carved_bytes -= pool.nbytes
            else:
                pool.free.append(address)
        for slab in idle:
            if slab == self._slab_end - SLAB_BYTES:
                self._slab_next = self._slab_end = 0
            del self._slabs[slab]
            self._segments.give_back(slab)


def _limit_of_settings() -> int | None:
    return settings.current().memory_limit_bytes


_shared = Allocator(_limit_of_settings)
allocate: Final = _shared.allocate
"""`allocate(nbytes) -> Buffer` from the process's allocator."""


def shared() -> Allocator:
    """The process's allocator."""
    return _shared


def memory_stats() -> dict[str, int]:
    """Counts of the process's allocator; see `Allocator.stats`."""
    return _shared.stats()


def reset_peak_memory_stats() -> None:
    """Begins the peaks of `memory_stats` anew at the present values."""
    _shared.reset_peaks()


def empty_cache() -> int:
    """Returns all memory that no result uses to the system; gives the number of bytes returned."""
    return _shared.empty_cache()
