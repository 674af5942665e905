"""The memory into which timed kernels write how long their tiles took: a part for each worker, and of equal size.

All fields are 8 bytes wide, durations are in ticks of the clock of records.

| word | field | meaning |
| --- | --- | --- |
| 0 | count | tiles that the worker finished |
| 1 | total | the sum of their durations |
| 2 | shortest | the shortest duration |
| 3 | longest | the longest one |
| 4-7 | | unused |
| 8 ... | durations | of the last `CAPACITY` tiles: tile i stands at i modulo `CAPACITY` |
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

COUNT, TOTAL, SHORTEST, LONGEST = range(4)
HEADER_WORDS: Final = 8
CAPACITY: Final = 2048
"""Durations that a worker's part holds, a power of two; more tiles than that are counted and summed all the same."""
WORKER_WORDS: Final = HEADER_WORDS + CAPACITY


def memory(workers: int) -> NDArray[numpy.int64]:
    """Parts for so many workers, a row each, without tiles."""
    rows = numpy.zeros((workers, WORKER_WORDS), numpy.int64)
    clear(rows)
    return rows


def clear(rows: NDArray[numpy.int64]) -> None:
    """Forgets the tiles."""
    rows[:, (COUNT, TOTAL, LONGEST)] = 0
    rows[:, SHORTEST] = numpy.iinfo(numpy.int64).max
