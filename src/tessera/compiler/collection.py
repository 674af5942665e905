"""Garbage collection around compiling.

Compiling makes some ten thousand objects that refer to each other and live on with the program. Python takes that for
growth worth looking through everything: with torch imported one full collection takes 0.1 s, five times as long as
binding a transformer block from the disk cache. Nothing is lost by looking afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later(later: bool = True) -> Iterator[None]:
    """Puts automatic collections off until the end if `later`; where the program switched them off they stay off.

    For what takes some seconds at most: the whole process collects no cycles meanwhile. Not to be entered by two
    threads at once.
    """
    pausing = later and gc.isenabled()
    if pausing:
        gc.disable()
    try:
        yield
    finally:
        if pausing:
            gc.enable()
