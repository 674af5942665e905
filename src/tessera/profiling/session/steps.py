"""Which steps of a training loop a session records."""

from __future__ import annotations

from dataclasses import dataclass
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
