"""Which steps of a training loop a session records."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from tessera.errors import ArgumentError

Phase = Literal["wait", "warmup", "active", "done"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cycles of `wait` steps at no cost, `warmup` steps that are recorded and thrown away, so that what a first record
    costs is over, and `active` steps that are kept; `repeat` cycles in all, 0 for no end.
    """

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 0

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("wait", "warmup", "active", "repeat")}
        wrong = [name for name, count in counts.items() if not isinstance(count, int) or count < 0]
        if wrong or not self.active:
            raise ArgumentError(
                f"schedule({', '.join(f'{name}={count!r}' for name, count in counts.items())})",
                hints=["all are whole numbers from 0 up, and active is at least 1"],
            )

    def phase(self, step: int) -> Phase:
        """What is done in a step; the first one is 0."""
        cycle, place = divmod(step, self.wait + self.warmup + self.active)
        if self.repeat and cycle >= self.repeat:
            return "done"
        if place < self.wait:
            return "wait"
        return "warmup" if place < self.wait + self.warmup else "active"


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
