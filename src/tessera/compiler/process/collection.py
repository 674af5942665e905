"""Garbage collection around compiling.

Compiling makes some ten thousand objects that refer to each other and live on with the program. Python takes that for
growth worth looking through everything: with torch imported one full collection takes 0.1 s, five times as long as
binding a transformer block from the disk cache. Nothing is lost by looking afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEVER: Final = 0
"""The first threshold with which Python starts no collection by itself."""


@contextmanager
def collecting_later(later: bool = True) -> Iterator[None]:
    """Puts automatic collections off until the end if `later`, by the threshold from which they start.

    What the program does meanwhile stays: collections that it switches on or off, and thresholds that it sets. For what
    takes some seconds at most: the whole process collects no cycles. Not to be entered by two threads at once.
    """
    before = gc.get_threshold()
    paused = (NEVER, *before[1:])
    if later:
        gc.set_threshold(*paused)
    try:
        yield
    finally:
        if later and gc.get_threshold() == paused:
            gc.set_threshold(*before)
