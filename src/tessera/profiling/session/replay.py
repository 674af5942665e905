"""Counters of every kernel of a GPU, by replay (`counters/range_profiling.py`).

It makes a program many times slower: only one that `tessera-prof` runs can be asked for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy

from tessera.errors import LibraryError
from tessera.profiling.counters.backends.pm_sampling import chip_of
from tessera.profiling.counters.nvidia_metrics import DURATION, RANGES
from tessera.profiling.counters.range_profiling import counted
from tessera.profiling.recording import instrumentation
from tessera.profiling.recording.device_kernels import Measured, PlanRun
from tessera.profiling.recording.recording import CountedKernel
from tessera.profiling.ring.layout import RECORD_WORDS
from tessera.profiling.session import sessions
from tessera.system import forks

DURATION_NS: Final = "duration_ns"

Count: TypeAlias = Callable[[Callable[[], object], int, int], Sequence[Mapping[str, float]]]
"""Runs what launches so many kernels on a device, by its number, and gives what was counted of each: `RANGES`' columns,
and `DURATION_NS`. Raises LibraryError, before or after it has run.
"""


def count_ranges(launch: Callable[[], object], kernels: int, device: int) -> Sequence[Mapping[str, float]]:
    """The `Count` of NVIDIA's GPUs."""
    return counted(launch, chip_of(device), kernels, {**RANGES, DURATION_NS: DURATION})


class Replay:
    """Runs plans so that each of their kernels is counted, one plan at a time, as long as that works."""

    def __init__(self, count: Count = count_ranges) -> None:
        self._count = count
        self._turn = forks.lock()
        self._works = True

    def counts(self, device: str) -> bool:
        """Whether kernels on this device are to be counted."""
        return self._works and device.startswith("cuda")

    def run(self, launch: Callable[[], object], plan: int, kernels: int, device: str) -> None:
        """Calls `launch`, which launches the kernels of a plan and waits for them; once, as the program sees it. What
        was counted goes to the active sessions: kernels one after the other, from the instant of the launch on.

        Where nothing can be counted, sessions are told why, as the capability of the columns.
        """
        with self._turn:
            run = PlanRun(plan, kernels, device, threading.get_ident(), time.monotonic_ns())
            told = self._counted(launch, kernels, int(device.rpartition(":")[2]))
            if told is None:
                instrumentation.note_unmeasured(device, kernels)
                return
            found = _laid_out(run, told)
            instrumentation.note_unmeasured(device, kernels, [found], _counters(run, found, told))

    def _counted(self, launch: Callable[[], object], kernels: int, device: int) -> Sequence[Mapping[str, float]] | None:
        ran = False

        def once() -> None:
            nonlocal ran
            ran = True
            launch()

        try:
            return self._count(once, kernels, device)
        except LibraryError as error:
            sessions.note_refusal(RANGES, "; ".join([f"not counted by replay: {error.message}", *error.hints]))
        if not ran:
            self._works = False  # what is missing now will be missing at the next kernel
            launch()
        return None


def _laid_out(run: PlanRun, told: Sequence[Mapping[str, float]]) -> Measured:
    rows = numpy.zeros((len(told), RECORD_WORDS), numpy.int64)
    start = run.launched_ns
    for step, each in enumerate(told):
        end = start + max(round(each[DURATION_NS]), 1)
        device = int(run.device.rpartition(":")[2]) + 1
        rows[step] = run.launched_ns, start, end, run.plan, step, 1, run.thread, device
        start = end
    return Measured(run, rows)


def _counters(run: PlanRun, found: Measured, told: Sequence[Mapping[str, float]]) -> list[CountedKernel]:
    return [
        CountedKernel(run.plan, step, int(row[1]), {name: value for name, value in each.items() if name in RANGES})
        for step, (row, each) in enumerate(zip(found.rows, told, strict=True))
    ]


current: Replay | None = None
"""The process's, while `tessera-prof` runs it and asks for it."""


def begin() -> None:
    """From now on plans of GPUs are counted."""
    global current  # noqa: PLW0603 - the process has one
    current = Replay()
