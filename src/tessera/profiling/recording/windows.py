"""When a recording was on."""

from __future__ import annotations

import time
from itertools import zip_longest


class Windows:
    """When a schedule's phase was active, in nanoseconds of `time.monotonic_ns`."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def turn(self, on: bool) -> None:
        """The phase is active from now on, or no more."""
        if on and len(self._begins) == len(self._ends):
            self._begins.append(time.monotonic_ns())
        elif not on and len(self._begins) > len(self._ends):
            self._ends.append(time.monotonic_ns())

    def hold(self, instant_ns: int) -> bool:
        """Whether the phase was active at an instant."""
        return any(
            begin <= instant_ns and (end is None or instant_ns < end)
            for begin, end in zip_longest(self._begins, self._ends)
        )
