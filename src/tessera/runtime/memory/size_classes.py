"""Size classes of the small-block pool: multiples of 64 bytes up to 512, then eight classes per doubling up to 32 KiB.

Rounding a request up to its class wastes at most 12.5 % above 512 bytes, and less than 64 bytes below.
"""

from __future__ import annotations

from typing import Final

GRANULE: Final = 64
"""Alignment of every block in bytes: a cache line, and the widest vector."""

SMALL_LIMIT: Final = 32 * 1024
"""Requests up to this many bytes are served from slabs."""


def _classes() -> tuple[int, ...]:
    sizes = list(range(GRANULE, 512 + 1, GRANULE))
    while sizes[-1] < SMALL_LIMIT:
        base = sizes[-1]
        sizes.extend(base + base * eighth // 8 for eighth in range(1, 9))
    return tuple(sizes)


SIZE_CLASSES: Final = _classes()


def _class_table() -> tuple[int, ...]:
    table = [0]
    for granules in range(1, SMALL_LIMIT // GRANULE + 1):
        nbytes = granules * GRANULE
        table.append(next(index for index, size in enumerate(SIZE_CLASSES) if size >= nbytes))
    return tuple(table)


CLASS_OF_GRANULES: Final = _class_table()
"""Index of the size class that serves a request of so many granules."""
