"""Where the scratch memory of a step's workers lies.

A gap that nobody touches keeps the workers' parts apart. Hardware prefetchers run ahead of a worker's loads, past the
end of its part: up to 16 strides of a load, which are 16 KB where rows of a packed block are 1 KB apart. Without the
gap they take the first lines of the next part, often its hottest, out of the other core's cache again and again (Zen 4,
attention over 1024 tokens by two workers: the second one takes 1.5 times as long; with 8 KB between them 1.3 times,
with 16 KB or more as long as the first).
"""

from __future__ import annotations

from typing import Final

from tessera.runtime.memory.liveness import round_up

GAP_BYTES: Final = 64 * 1024
"""Four times what was measured, as strides may be longer. Pages of it that are never touched take no memory."""


def pitch(nbytes: int) -> int:
    """Bytes from one worker's scratch memory of `nbytes` bytes to the next one's."""
    return round_up(nbytes) + GAP_BYTES if nbytes else 0


def total(nbytes: int, workers: int) -> int:
    """Bytes of the scratch memory of all workers of a step, `nbytes` each; nothing lies behind the last one's."""
    return (workers - 1) * pitch(nbytes) + round_up(nbytes)
