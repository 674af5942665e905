"""Kernels and copies of GPUs as the devices timed them, joined to the steps of the plans that launched them.

Each run of a plan has a number, which the source (CUPTI) ties to what the run launches. A run's kernels are its steps
in order; a run whose kernels are not all told, or more than its steps, stays among the kernels that nobody measured.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from tessera.profiling.recording.events import RecordedEvent
from tessera.profiling.ring.layout import RECORD_WORDS


class TimedKernel(NamedTuple):
    """A kernel that a device ran, times by `time.monotonic_ns`. `correlation` is that of the launching call."""

    correlation: int
    start_ns: int
    end_ns: int
    device: int
    name: str


class TimedCopy(NamedTuple):
    """A copy that a device made. `direction` is "h2d", "d2h", "d2d"."""

    start_ns: int
    end_ns: int
    device: int
    direction: str
    nbytes: int


class SourceReport(NamedTuple):
    """What a source has told since it was last asked: `runs` gives the run's number by correlation."""

    kernels: Sequence[TimedKernel]
    copies: Sequence[TimedCopy]
    runs: Mapping[int, int]


class KernelTimeSource(Protocol):
    """Where the times of GPUs come from; `counters.cupti_activity.CuptiActivity` is the one of NVIDIA."""

    def begin(self) -> None:
        """Starts recording. Raises LibraryError."""

    def end(self) -> None:
        """Ends recording."""

    def push(self, number: int) -> None:
        """What the calling thread launches from now on belongs to a run."""

    def pop(self) -> None:
        """The run's launches are over."""

    def told(self) -> SourceReport:
        """Everything that devices have finished, after waiting for what is under way."""


class PlanRun(NamedTuple):
    """A plan's run: its steps are kernels, launched by a thread at an instant."""

    plan: int
    steps: int
    device: str
    thread: int
    launched_ns: int


class Measured(NamedTuple):
    """Kernels of one run as native records (`layout.RECORD_FIELDS`): word 0 is the instant of the launch, word 7 the
    number of the device + 1.
    """

    run: PlanRun
    rows: NDArray[numpy.int64]


class RunCollection:
    """What runs launched and devices told, until somebody takes it. Threads may enter and leave at any time."""

    def __init__(self, source: KernelTimeSource) -> None:
        self._source = source
        self._numbers = itertools.count(1)
        self._runs: dict[int, PlanRun] = {}
        self._kernels: dict[int, list[TimedKernel]] = {}
        self._waited_for: set[int] = set()

    def enter(self, plan: int, steps: int, device: str) -> Launching:
        """The calling thread begins to launch the steps of a plan."""
        number = next(self._numbers)
        run = PlanRun(plan, steps, device, threading.get_ident(), time.monotonic_ns())
        self._source.push(number)
        return Launching(self, number, run)

    def leave(self, number: int, run: PlanRun) -> None:
        """The calling thread has launched them, and sessions have counted them."""
        self._source.pop()
        self._runs[number] = run

    def take(self) -> tuple[list[Measured], list[RecordedEvent]]:
        """The runs that devices have finished, and their copies. Waits for the devices."""
        before = set(self._runs)
        told = self._source.told()
        for kernel in told.kernels:
            if (number := told.runs.get(kernel.correlation)) is not None:
                self._kernels.setdefault(number, []).append(kernel)
        finished = []
        for number in before:
            run, kernels = self._runs[number], self._kernels.get(number, ())
            if len(kernels) == run.steps:
                finished.append(Measured(run, _rows(run, kernels)))
            # Waited for twice: never told.
            if len(kernels) == run.steps or number in self._waited_for:
                del self._runs[number]
                self._kernels.pop(number, None)
        self._waited_for = before & self._runs.keys()
        return finished, [_noted(copy) for copy in told.copies]


def _rows(run: PlanRun, kernels: Iterable[TimedKernel]) -> NDArray[numpy.int64]:
    """Steps run one after the other, so that their order is that of their starts."""
    ordered = sorted(kernels, key=lambda kernel: (kernel.start_ns, kernel.correlation))
    rows = numpy.empty((len(ordered), RECORD_WORDS), numpy.int64)
    for step, kernel in enumerate(ordered):
        rows[step] = (
            run.launched_ns,
            kernel.start_ns,
            kernel.end_ns,
            run.plan,
            step,
            1,
            run.thread,
            kernel.device + 1,
        )
    return rows


def _noted(copy: TimedCopy) -> RecordedEvent:
    columns: dict[str, Any] = {
        "bytes": copy.nbytes,
        "memcpy_dir": copy.direction,
        "memcpy_gbps": copy.nbytes / max(copy.end_ns - copy.start_ns, 1),
        "device": f"cuda:{copy.device}",
    }
    return RecordedEvent("memcpy", f"memcpy {copy.direction}", copy.start_ns, copy.end_ns, 0, columns)


class Launching(NamedTuple):
    """A run that is being launched."""

    collection: RunCollection
    number: int
    run: PlanRun

    def leave(self) -> None:
        """The calling thread has launched it, and sessions have counted it."""
        self.collection.leave(self.number, self.run)


class RunCollector:
    """Turns a collection on while any session wants it. Sessions hold their lock around `begin`, `end` and `take`."""

    def __init__(self) -> None:
        self._collection: RunCollection | None = None
        self._source: KernelTimeSource | None = None
        self._users = 0

    def begin(self, source: KernelTimeSource) -> None:
        """One more session wants it. Raises LibraryError where the source does not start."""
        if self._users == 0:
            source.begin()
            self._source, self._collection = source, RunCollection(source)
        self._users += 1

    def end(self) -> None:
        """One session less."""
        self._users -= 1
        if self._users == 0 and self._source is not None:
            self._collection, source, self._source = None, self._source, None
            source.end()

    def take(self) -> tuple[list[Measured], list[RecordedEvent]]:
        """As `RunCollection.take`; nothing while nobody wants it."""
        collection = self._collection
        return ([], []) if collection is None else collection.take()

    def enter(self, plan: int, steps: int, device: str) -> Launching | None:
        """As `RunCollection.enter`; None while nobody wants it."""
        collection = self._collection
        return None if collection is None else collection.enter(plan, steps, device)


COLLECTOR: Final = RunCollector()
"""The process's."""
