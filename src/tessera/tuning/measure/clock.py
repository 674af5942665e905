"""Timing inside the worker: batches long enough for the clock, on warm or flushed caches, and was the processor ours
meanwhile?
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable

from tessera.tuning.measure.protocol import Sample

_PRESSURE = "/proc/pressure/cpu"
_CONTENDED_SHARE = 0.03
"""A sample counts as contended when some task waited for a processor during more than this share of it."""

_FLUSH_BYTES = 64 << 20
_MAXIMUM_CALLS = 1_000_000
_LONG_S = 0.02


class ContentionMeter:
    """Tells whether other work competed for the processors since `start`.

    Linux' pressure stall information says how long any task waited for a processor. Where there is none, involuntary
    context switches of this process are counted: each means that somebody else took a processor from it.
    """

    def __init__(self) -> None:
        try:
            self._pressure: int | None = os.open(_PRESSURE, os.O_RDONLY)
            self._waited_us()
        except (OSError, ValueError, IndexError):
            self._pressure = None
        self.start()

    def start(self) -> None:
        """Begins a sample."""
        self._before = self._reading()

    def contended(self, elapsed_s: float) -> bool:
        """Whether the sample of `elapsed_s` seconds that ends now was disturbed."""
        delta = self._reading() - self._before
        return delta > _CONTENDED_SHARE * elapsed_s * 1e6 if self._pressure is not None else delta > 0

    def _reading(self) -> int:
        if self._pressure is not None:
            return self._waited_us()
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def _waited_us(self) -> int:
        assert self._pressure is not None
        # First line: some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>
        return int(os.pread(self._pressure, 256, 0).split(b"total=", 1)[1].split(b"\n", 1)[0])


class CacheFlush:
    """Fills the caches with other data, so that the next call finds its operands in memory.

    With memset and not with torch: torch's threads would go on spinning and slow the call that follows.
    """

    def __init__(self) -> None:
        try:
            last_level = os.sysconf("SC_LEVEL3_CACHE_SIZE")
        except (OSError, ValueError):  # the name is glibc's
            last_level = 0
        self._buffer = ctypes.create_string_buffer(max(2 * last_level, _FLUSH_BYTES))

    def __call__(self) -> None:
        ctypes.memset(self._buffer, 1, len(self._buffer))


def time_batch(
    run: Callable[[], None],
    seconds: float,
    meter: ContentionMeter,
    flush: CacheFlush | None = None,
    estimate_s: float | None = None,
) -> Sample:
    """One sample of about `seconds`: as many calls as fit, or one on flushed caches.

    A warm-up call goes before, except where the candidate is known (`estimate_s`) to run long enough to warm itself.
    """
    clock = time.perf_counter
    if estimate_s is None or estimate_s < _LONG_S:
        begin = clock()
        run()
        estimate_s = max(clock() - begin, 1e-7)
    calls = min(max(round(seconds / estimate_s), 1), _MAXIMUM_CALLS)
    if flush is not None:
        flush()
        calls = 1
    meter.start()
    begin = clock()
    for _ in range(calls):
        run()
    elapsed = clock() - begin
    return Sample(elapsed / calls, calls, meter.contended(elapsed))
