"""A recorded table as a measurer: raw samples are handed out one by one, so that every strategy sees the same noise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from bench.tuning.table import Table
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import Effort
from tessera.tuning.measure.trial import Timing, Trial

_LEAST_ROUNDS = 2
"""Rounds in which all are timed, as in `SubprocessMeasurer`."""


class TableMeasurer:
    """Hands out the samples of a table in an order drawn with `seed`; where all of a schedule's are used up, anew.

    With `half` 0 or 1 it has that half of the samples (`Table.samples`) only. Schedules of the same code are one
    candidate, as in a live tuning. Cases may be anything.
    """

    def __init__(self, table: Table, seed: int = 0, half: int | None = None) -> None:
        self._table = table
        self._seed = seed
        self._half = half
        self._streams: dict[str, Iterator[float]] = {}

    def measure(self, cases: Sequence[tuple[Schedule, object]], effort: Effort) -> list[Trial]:
        """A trial for each schedule, timed in rounds as a live measurer does."""
        codes = {schedule: self._code(schedule) for schedule, _ in cases}
        taken: dict[str, list[float]] = {code: [] for code in codes.values() if code is not None}
        for number in range(effort.rounds):
            best = min((min(samples) for samples in taken.values() if samples), default=0.0)
            for code, samples in taken.items():
                if number < _LEAST_ROUNDS or min(samples) <= effort.lag * best:
                    samples.append(next(self._streams[code]))
        return [self._trial(schedule, codes[schedule], taken) for schedule, _ in cases]

    def _trial(self, schedule: Schedule, code: str | None, taken: dict[str, list[float]]) -> Trial:
        if code is not None:
            return Trial(schedule, "ok", Timing.of(taken[code]))
        record = self._table.by_schedule.get(schedule)
        if record is None or record.outcome == "ok":
            return Trial(schedule, "compile_error", detail="not in the recorded table")
        return Trial(schedule, record.outcome, detail=record.detail)

    def _code(self, schedule: Schedule) -> str | None:
        """The code of a schedule whose stream is ready; None for one without samples."""
        samples = self._table.samples(schedule, self._half)
        if not samples:
            return None
        code = self._table.by_schedule[schedule].code
        if code not in self._streams:
            self._streams[code] = _endless(samples, random.Random(f"{self._seed} {code}"))
        return code


def _endless(samples: Sequence[float], generator: random.Random) -> Iterator[float]:
    while True:
        yield from generator.sample(samples, len(samples))
