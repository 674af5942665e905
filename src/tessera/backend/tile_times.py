"""The memory into which timed kernels write how long their tiles took. All fields are 8 bytes wide.

On CPUs a part for each worker, and of equal size; durations are in ticks of the clock of records.

| word | field | meaning |
| --- | --- | --- |
| 0 | count | tiles that the worker finished |
| 1 | total | the sum of their durations |
| 2 | shortest | the shortest duration |
| 3 | longest | the longest one |
| 4-7 | | unused |
| 8 ... | durations | of the last `CAPACITY` tiles: tile i stands at i modulo `CAPACITY` |

On GPUs `RECORD_WORDS` words for each step of the grid, by its number.

| word | field | meaning |
| --- | --- | --- |
| 0 | start | the GPU's clock when the tile began, in ticks of the backend's `tick_ns` |
| 1 | end | the same when it had ended |
| 2 | multiprocessor | the number of the one that ran it; -1 where the GPU does not tell |
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

START, END, MULTIPROCESSOR = range(3)
RECORD_WORDS: Final = 3


def memory(workers: int) -> NDArray[numpy.int64]:
    """Parts for so many workers, a row each, without tiles."""
    rows = numpy.zeros((workers, WORKER_WORDS), numpy.int64)
    clear(rows)
    return rows


def clear(rows: NDArray[numpy.int64]) -> None:
    """Forgets the tiles."""
    rows[:, (COUNT, TOTAL, LONGEST)] = 0
    rows[:, SHORTEST] = numpy.iinfo(numpy.int64).max
