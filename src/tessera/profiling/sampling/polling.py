"""Reading numbers at fixed instants by native code, without the GIL: what sampling does between Python's own turns.

The plan, 8-byte words, shared with the loop of `backend/llvm/native/polling_ir.py`:

| word | field | meaning |
| --- | --- | --- |
| 0 | gate | 0: open; 1: the loop is reading; 2: ended, nothing is read any more |
| 1 | deadline | the next instant, in nanoseconds of `time.monotonic_ns` |
| 2 | interval | between instants, in nanoseconds |
| 3 | until | the instant at or after which Python has its turn |
| 4 | written | rows ever written |
| 5 | taken | rows ever taken |
| 6 | capacity | rows that there is room for |
| 7 | missed | instants that passed while the thread could not run |
| 8 | rows | their address; a row is the instant of the reading, then a value for each source |
| 9 | sources | how many |
| 10 | tick | the instant that was read for last |
| 11 ... | | for each source: kind (0: clock, 1: file), clock or descriptor, place of the number in the file, unused |
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import Final

import numpy
from numpy.typing import NDArray

from tessera import settings
from tessera.profiling.counters.interfaces import Polled

_SOURCE_WORDS: Final = 4
_DEADLINE, _UNTIL, _WRITTEN, _TAKEN, _MISSED, _TICK = 1, 3, 4, 5, 7, 10
_MISSING: Final = -(2**63)
_ROOM: Final = 256
"""Rows: seconds at the usual intervals."""


class Outcome(IntEnum):
    """Why the loop came back."""

    ENDED = 0
    TURN = 1
    """The instant came at which Python has its turn, and was read."""
    FULL = 2
    FAILED = 3
    """A number is not there any more; its row is left out."""


class _Native:
    """The loaded loop."""

    def __init__(self) -> None:
        from tessera.backend.llvm.machine_code.library import cached_library
        from tessera.backend.llvm.native.polling_ir import polling_text

        text = polling_text(
            source_words=_SOURCE_WORDS, missing=_MISSING, monotonic=time.CLOCK_MONOTONIC, interrupted=errno.EINTR
        )
        self._library = cached_library("polling", text, settings.current().objects_dir)
        # CFUNCTYPE releases the GIL around calls.
        self.poll: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(
            self._library.address("tessera_poll")
        )
        self.end: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            self._library.address("tessera_poll_end")
        )


_native = cache(_Native)


class Polling:
    """Numbers that one thread reads by `run`, every `interval_ns`; another may `take` and `end`, one at a time."""

    def __init__(self, sources: Sequence[Polled], interval_ns: int) -> None:
        self._loop = _native()
        self._rows = numpy.zeros((_ROOM, 1 + len(sources)), numpy.int64)
        header = [0, 0, interval_ns, 0, 0, 0, _ROOM, 0, self._rows.ctypes.data, len(sources), 0]
        told = [(int(not each.is_clock), each.handle, each.place, 0) for each in sources]
        self._plan = numpy.array([*header, *(word for each in told for word in each)], numpy.int64)
        self._address = int(self._plan.ctypes.data)

    @property
    def ticks(self) -> int:
        """Rows ever written."""
        return int(self._plan[_WRITTEN])

    @property
    def missed(self) -> int:
        """Instants that passed while the thread could not run."""
        return int(self._plan[_MISSED])

    @property
    def tick_ns(self) -> int:
        """The instant that was read for last."""
        return int(self._plan[_TICK])

    @property
    def deadline_ns(self) -> int:
        """The next instant."""
        return int(self._plan[_DEADLINE])

    def begin(self, first_ns: int) -> None:
        """Sets the first instant."""
        self._plan[_DEADLINE] = first_ns

    def run(self, until_ns: int) -> Outcome:
        """Sleeps and reads by turns, up to the first instant at or after `until_ns` unless something else happens."""
        self._plan[_UNTIL] = until_ns
        return Outcome(self._loop.poll(self._address))

    def take(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.float64]]:
        """Instants since the last call, and a column of values for each source."""
        taken, written = int(self._plan[_TAKEN]), self.ticks
        rows = self._rows[numpy.arange(taken, written) % _ROOM]
        self._plan[_TAKEN] = written
        return rows[:, 0], rows[:, 1:].astype(numpy.float64)

    def end(self) -> None:
        """When it returns, files may be closed: nothing reads them any more."""
        self._loop.end(self._address)
