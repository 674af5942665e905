"""The ring buffer that the native driver writes, and its reading.

There is one ring in a process, made at the first profile and kept until the process ends, because a driver call that
began while a profile was on may still write to it after that profile ended. Turning recording on and off is one store
to a cell that every plan's frame points to.

Nothing is lost unseen: `launched == recorded + dropped` holds for every drain. A record is dropped when it was
overwritten before it was read (the ring is drained too rarely) or when its writer had not finished it.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy
from numpy.typing import NDArray

from tessera import settings
from tessera.profiling.ring.layout import RECORD_FIELDS, RECORD_WORDS, RING_HEADER_WORDS
from tessera.system import forks

TIMES: Final = slice(RECORD_FIELDS.index("start"), RECORD_FIELDS.index("end") + 1)

_WORD: Final = 8
_CALIBRATION_NS: Final = 2_000_000
_UNFINISHED_WAIT_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Drained:
    """Whole records in the order of their sequence, times still in ticks, and what became of the others."""

    records: NDArray[numpy.int64]
    launched: int
    overwritten: int
    unfinished: int

    @property
    def dropped(self) -> int:
        return self.overwritten + self.unfinished

    def column(self, name: str) -> NDArray[numpy.int64]:
        """One field of all records; names are `layout.RECORD_FIELDS`."""
        return self.records[:, RECORD_FIELDS.index(name)]


class Ring:
    """A ring of `capacity` records (a power of two) in memory of its own. Many threads write, one at a time drains."""

    def __init__(self, capacity: int) -> None:
        if capacity < 2 or capacity & (capacity - 1):
            raise ValueError(f"the capacity of a ring is a power of two, not {capacity}")
        self.capacity = capacity
        size = _WORD * (RING_HEADER_WORDS + RECORD_WORDS * capacity)
        # Private, or a child after fork would write into its parent's ring. Populated, or the first records would each
        # pay their part of a page fault.
        populated = getattr(mmap, "MAP_POPULATE", 0)
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populated)
        self._words = numpy.frombuffer(self._memory, dtype=numpy.int64)
        self._words[1] = capacity
        self._records = self._words[RING_HEADER_WORDS:].reshape(capacity, RECORD_WORDS)
        self._read = 0
        self.address: int = self._words.ctypes.data

    @property
    def written(self) -> int:
        """Records ever taken by writers."""
        return int(self._words[0])

    @property
    def backlog(self) -> int:
        """Records written and not drained yet, those that were overwritten among them."""
        return self.written - self._read

    def drain(self) -> Drained:
        """Everything written since the last drain. A record still being written is waited for, 1 ms at most."""
        begin, end = self._read, self.written
        oldest = max(begin, end - self.capacity)
        self._wait_for_writers(oldest, end)
        positions = numpy.arange(oldest, end, dtype=numpy.int64)
        rows = self._records[positions & (self.capacity - 1)]
        # Writers go on while the copy is made: keep what carried its own number before and cannot have been overtaken
        # since.
        overtaken = max(oldest, min(self.written - self.capacity, end))
        fresh = rows[overtaken - oldest :]
        whole = fresh[:, 0] == positions[overtaken - oldest :] + 1
        records = fresh[whole]
        self._read = end
        return Drained(records, end - begin, overtaken - begin, int(len(fresh) - len(records)))

    def _wait_for_writers(self, oldest: int, end: int) -> None:
        deadline = time.monotonic() + _UNFINISHED_WAIT_S
        slots = numpy.arange(oldest, end, dtype=numpy.int64)
        while time.monotonic() < deadline:
            if bool((self._records[slots & (self.capacity - 1), 0] >= slots + 1).all()):
                return
            time.sleep(0)


@dataclass(frozen=True, slots=True)
class ClockPair:
    """One instant on both clocks."""

    ticks: int
    monotonic_ns: int


class Clock:
    """Converts ticks of the records' clock to nanoseconds of `time.monotonic_ns`.

    The rate comes from two anchors as far apart as the clock's life allows, so that it gets better as the process runs.
    """

    def __init__(self, read_ticks: Callable[[], int]) -> None:
        self._read = read_ticks
        self._first = self._anchor()

    def _anchor(self) -> ClockPair:
        """Of a few pairs of readings, the one with the least time between the readings."""
        best: tuple[int, ClockPair] | None = None
        for _ in range(8):
            before = time.monotonic_ns()
            ticks = self._read()
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, ClockPair(ticks, (before + after) // 2))
        assert best is not None
        return best[1]

    def ns_per_tick(self) -> float:
        """How long a tick is. Waits until 2 ms of clock are there to take the rate from."""
        return self._rate(self._latest())

    def _latest(self) -> ClockPair:
        while time.monotonic_ns() - self._first.monotonic_ns < _CALIBRATION_NS:
            time.sleep(0.0005)
        return self._anchor()

    def _rate(self, last: ClockPair) -> float:
        return (last.monotonic_ns - self._first.monotonic_ns) / (last.ticks - self._first.ticks)

    def to_ns(self, ticks: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """`ticks` on the scale of `time.monotonic_ns`. Waits until 2 ms of clock are there to take the rate from."""
        last = self._latest()
        # Relative to the latest anchor, so that the rate's error does not grow with the age of the process.
        offset = (ticks - last.ticks).astype(numpy.float64) * self._rate(last)
        result: NDArray[numpy.int64] = numpy.rint(offset).astype(numpy.int64) + last.monotonic_ns
        return result


_lock = forks.lock()
_cell = ctypes.c_int64(0)
_ring: Ring | None = None
_clock: Clock | None = None

CELL_ADDRESS: Final = ctypes.addressof(_cell)
"""Address of the word that frames point to: the ring's address while recording is on, else 0."""


def provide_clock(read_ticks: Callable[[], int]) -> None:
    """Called by the runtime when it loads the driver: the function that reads the clock of the records."""
    global _clock  # noqa: PLW0603 - the process has one
    _clock = Clock(read_ticks)


def ns_per_tick() -> float:
    """Nanoseconds of a tick of the clock that records are written with."""
    if _clock is None:
        raise RuntimeError("no runtime has provided a clock")
    return _clock.ns_per_tick()


def ring() -> Ring:
    """The process's ring, made at the first call; TESSERA_PROFILE_RECORDS, rounded up to a power of two, is its
    size.
    """
    global _ring  # noqa: PLW0603 - the process has one
    with _lock:
        if _ring is None:
            _ring = Ring(1 << (settings.current().profile_records - 1).bit_length())
        return _ring


def start() -> None:
    """Turns recording on, for every plan of the process."""
    _cell.value = ring().address


def stop() -> None:
    """Turns recording off. Driver calls already under way still write their records."""
    _cell.value = 0


def recording() -> bool:
    """Whether the driver records."""
    return _cell.value != 0


def drain() -> Drained:
    """What the ring took up since the last drain, with `start` and `end` in nanoseconds of `time.monotonic_ns`."""
    taken = ring()
    with _lock:
        drained = taken.drain()
        if len(drained.records):
            if _clock is None:
                raise RuntimeError("records were written, but the runtime that wrote them provided no clock")
            # Both columns by one call: each call takes a new anchor, and a duration must not straddle two.
            drained.records[:, TIMES] = _clock.to_ns(drained.records[:, TIMES])
        return drained
