"""Sums over kernels: what reports need, in bounded memory however long a session is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy
from numpy.typing import NDArray

from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.ring.layout import RECORD_FIELDS

_PLACE: Final = {name: place for place, name in enumerate(RECORD_FIELDS)}

Integers = NDArray[numpy.int64]


def distinct(plan: Integers, step: Integers) -> tuple[list[tuple[int, int]], NDArray[numpy.uint32]]:
    """The pairs (plan, step) that occur, ascending, and the place of each row's pair among them."""
    if not len(plan):
        return [], numpy.empty(0, numpy.uint32)
    width, low = int(step.max()) + 1, int(plan.min())
    key = (plan - low) * width + step
    if (size := int(key.max()) + 1) <= 4 * len(key) + 4096:  # no sorting: numbers of plans are small and dense
        occurs = numpy.zeros(size, bool)
        occurs[key] = True
        place = numpy.cumsum(occurs, dtype=numpy.uint32) - 1
        keys, codes = numpy.flatnonzero(occurs), place[key].astype(numpy.uint32)
    else:
        keys, codes = _sorted_out(key)
    return [(int(each) // width + low, int(each) % width) for each in keys], codes


def _sorted_out(key: Integers) -> tuple[Integers, NDArray[numpy.uint32]]:
    """As `numpy.unique(key, return_inverse=True)`, which imports a module at its first call: 0.2 s of a program that is
    profiled.
    """
    order = numpy.argsort(key)
    ordered = key[order]
    is_first = numpy.append(True, ordered[1:] != ordered[:-1])
    codes = numpy.empty(len(key), numpy.uint32)
    codes[order] = numpy.cumsum(is_first) - 1
    return ordered[is_first], codes


@dataclass(slots=True)
class Total:
    """The kernels of one step of a plan on so many workers of a device (0: the CPU)."""

    plan: int
    step: int
    workers: int
    device: int
    first: float
    """Seconds of the first call."""
    calls: int = 0
    seconds: float = 0.0
    fastest: float = float("inf")


@dataclass(frozen=True, slots=True)
class OperatorTotal:
    """The kernels of one operator label, element type and work, on so many workers of a device (0: the CPU). Operations
    and bytes are those of a kernel; so a file's metadata tell them, too. `first` are the seconds of the first call;
    `median` and `p90` are None where sums alone were kept; `schedule_source` says who chose the schedule.
    """

    operator: str
    dtype: str
    flops: float
    bytes: float
    workers: int
    device: int
    calls: int
    seconds: float
    fastest: float
    first: float | None = None
    median: float | None = None
    p90: float | None = None
    schedule_source: str = ""

    @staticmethod
    def of(total: Total, facts: StepFacts) -> OperatorTotal:
        """A step's sums under the operator's name."""
        return OperatorTotal(
            facts.operator,
            facts.dtype,
            facts.flops,
            facts.bytes,
            total.workers,
            total.device,
            total.calls,
            total.seconds,
            total.fastest,
            total.first,
            schedule_source=facts.schedule_source,
        )


class Totals:
    """Sums by plan, step, workers and device, in order of their first kernel."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[int, int, int, int], Total] = {}

    def values(self) -> list[Total]:
        """All sums."""
        return list(self._by_key.values())

    def add(self, rows: Integers) -> None:
        """Adds native records, times in nanoseconds."""
        if not len(rows):
            return
        workers, device = rows[:, _PLACE["workers"]], rows[:, _PLACE["device"]]
        devices = int(device.max()) + 1
        width = (int(workers.max()) + 1) * devices
        keys, codes = distinct(rows[:, _PLACE["plan"]], rows[:, _PLACE["step"]] * width + workers * devices + device)
        taken = (rows[:, _PLACE["end"]] - rows[:, _PLACE["start"]]).astype(numpy.float64)
        calls = numpy.bincount(codes, minlength=len(keys))
        sums = numpy.bincount(codes, taken, minlength=len(keys)) / 1e9
        first = numpy.empty(len(keys), numpy.int64)
        first[codes[::-1]] = numpy.arange(len(rows))[::-1]  # of several stores to one place the last one stays
        fastest = numpy.full(len(keys), numpy.inf)
        numpy.minimum.at(fastest, codes, taken)
        for place in numpy.argsort(first).tolist():
            plan, packed = keys[place]
            key = plan, packed // width, packed % width // devices, packed % devices
            total = self._by_key.setdefault(key, Total(*key, first=float(taken[first[place]]) / 1e9))
            total.calls += int(calls[place])
            total.seconds += float(sums[place])
            total.fastest = min(total.fastest, float(fastest[place]) / 1e9)
