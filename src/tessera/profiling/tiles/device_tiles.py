"""What timed kernels of GPUs say of their tiles (`backend/triton/printing/tile_clock.py`), collected after calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy
from numpy.typing import NDArray

from tessera.backend.tile_times import END, MULTIPROCESSOR, START
from tessera.profiling.tiles.tiles import Tiles

CLOCK_COST: Final = "what reading its clock costs is not measured on GPUs"
NO_PLACES: Final = "the GPU does not tell which multiprocessor ran a tile"

Words = NDArray[numpy.int64]
"""A row for each tile: when it began and ended, in ticks, and where it ran."""


class DeviceTiles(Tiles):
    """The tiles of a GPU's kernel; durations are in nanoseconds. `advance_ns` is what the clock was seen to advance by,
    None as long as it stood still.
    """

    ns_per_tick = 1.0

    def __init__(self, tick_ns: float, multiprocessors: int) -> None:
        self.workers = multiprocessors
        self._tick_ns = tick_ns
        super().__init__()

    def forget(self) -> None:
        """Begins anew."""
        super().forget()
        self._covered_ns: int | None = 0
        self.advance_ns: int | None = None

    @property
    def busy(self) -> int | None:
        """The time in calls that multiprocessors had a tile or several; None where nobody knows where tiles ran."""
        return self._covered_ns

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Why figures of a row are None, by name."""
        return {"clock_pct": CLOCK_COST} | ({"occupancy_pct": NO_PLACES} if self._covered_ns is None else {})

    def collect(self, words: Words) -> tuple[int, int]:
        """Takes what a call's tiles, of which there is one at least, wrote; when the first began and the last ended."""
        times = self._nanoseconds(words[:, [START, END]])
        durations = times[:, 1] - times[:, 0]
        self.calls += 1
        self.count += len(words)
        self.total += int(durations.sum())
        self.longest = max(self.longest, int(durations.max()))
        shortest = int(durations.min())
        self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
        self._hold(durations)
        advance = int(numpy.gcd.reduce((times - times.min()).ravel())) or None
        self.advance_ns = (
            advance if self.advance_ns is None or advance is None else int(numpy.gcd(self.advance_ns, advance))
        )
        if (words[:, MULTIPROCESSOR] < 0).any():
            self._covered_ns = None
        elif self._covered_ns is not None:
            self._covered_ns += covered(times[:, 0], times[:, 1], words[:, MULTIPROCESSOR])
        return int(times.min()), int(times.max())

    def _nanoseconds(self, ticks: Words) -> Words:
        return ticks if self._tick_ns == 1 else numpy.rint(ticks * self._tick_ns).astype(numpy.int64)


def covered(starts: Words, ends: Words, places: Words) -> int:
    """The time that intervals cover, on each place by themselves, where they may overlap."""
    # Places are laid out one after the other on one axis.
    first = int(starts.min())
    shift = places * (int(ends.max()) - first + 1) - first
    order = numpy.argsort(starts + shift, kind="stable")
    begins, finishes = (starts + shift)[order], (ends + shift)[order]
    reached = numpy.maximum.accumulate(finishes)
    before = numpy.concatenate([begins[:1], reached[:-1]])
    return int(numpy.maximum(finishes - numpy.maximum(begins, before), 0).sum())
