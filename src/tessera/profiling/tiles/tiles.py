"""What timed kernels say of their tiles, collected after each call of a plan and summed up over calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from tessera.backend import tile_times
from tessera.backend.tile_times import CAPACITY, COUNT, HEADER_WORDS, LONGEST, SHORTEST, TOTAL
from tessera.system import forks


class ClockCost(NamedTuple):
    """Nanoseconds that timing a tile takes: as far as they count as the tile's own time, and in all."""

    inside_ns: float
    whole_ns: float


HELD: Final = 1 << 15
"""Single durations of a step that are kept: those of the last calls, of at least one. Older ones are counted and summed
all the same.
"""


class Tiles:
    """The tiles of one step of a plan, over its calls. Durations are in ticks of `ns_per_tick`; where that is None, of
    the clock of records.
    """

    ns_per_tick: float | None = None

    def __init__(self) -> None:
        self._held: deque[NDArray[numpy.int64]] = deque()
        self.forget()

    @property
    def busy(self) -> int | None:
        """The time in calls that workers had a tile; None where that is not known."""
        return self.total

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Why figures of a row are None, by name."""
        return {}

    def forget(self) -> None:
        """Begins anew."""
        self._held.clear()
        self._holds = 0
        self.calls = self.count = self.total = self.longest = 0
        self.shortest: int | None = None

    def _hold(self, fresh: NDArray[numpy.int64]) -> None:
        while self._held and self._holds + len(fresh) > HELD:
            self._holds -= len(self._held.popleft())
        self._held.append(fresh)
        self._holds += len(fresh)

    def durations(self) -> NDArray[numpy.int64]:
        """The single durations that are held, in no order: of the last calls, and of CPUs each worker's last
        `CAPACITY` tiles there.
        """
        return numpy.concatenate([numpy.empty(0, numpy.int64), *self._held])


class TileTimes(Tiles):
    """The tiles of a CPU's kernel."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = tile_times.memory(workers)
        super().__init__()

    @property
    def address(self) -> int:
        """Where the kernel writes: memory for `workers` workers, kept as long as this object is."""
        return int(self._memory.ctypes.data)

    def forget(self) -> None:
        """Begins anew."""
        super().forget()
        tile_times.clear(self._memory)

    def collect(self) -> None:
        """Takes what the call of the step that has just ended wrote."""
        header = self._memory[:, :HEADER_WORDS]
        counts = header[:, COUNT]
        self.calls += 1
        self.count += int(counts.sum())
        self.total += int(header[:, TOTAL].sum())
        self.longest = max(self.longest, int(header[:, LONGEST].max()))
        if counts.any():
            shortest = int(header[:, SHORTEST].min())
            self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
        written = zip(self._memory, counts.tolist(), strict=True)
        fresh = numpy.concatenate([row[HEADER_WORDS : HEADER_WORDS + min(count, CAPACITY)] for row, count in written])
        self._hold(fresh)
        tile_times.clear(self._memory)


def collecting(run: Callable[[int], None], steps: Sequence[TileTimes]) -> Callable[[int], None]:
    """What runs a frame of a plan, and then collects from its timed steps. Calls take turns: they share the memory."""
    turn = forks.lock()

    def timed(frame: int) -> None:
        with turn:
            try:
                run(frame)
            finally:  # a call of a library may have failed: what ran is no part of the next call
                for each in steps:
                    each.collect()

    return timed
