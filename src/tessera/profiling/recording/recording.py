"""What a session recorded: native records as they were drained, and what Python noted around them."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from tessera.profiling.recording import clock_sync, facts, tracks
from tessera.profiling.recording.attribution import IssuedWork
from tessera.profiling.recording.callers import Callers
from tessera.profiling.recording.device_kernels import Measured
from tessera.profiling.recording.events import RecordedEvent
from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.recording.regions import Presence, RegionEvent
from tessera.profiling.recording.totals import OperatorTotal, Totals
from tessera.profiling.recording.tracks import Service
from tessera.profiling.recording.windows import Windows
from tessera.profiling.ring.layout import RECORD_FIELDS, RECORD_WORDS
from tessera.profiling.ring.recorder import Drained
from tessera.profiling.trace import recorded_target
from tessera.profiling.trace.schema import FORMAT_VERSION
from tessera.system import files
from tessera.system.distribution import VERSION

if TYPE_CHECKING:
    import polars

_START: Final = RECORD_FIELDS.index("start")
_PLAN: Final = RECORD_FIELDS.index("plan")
_THREAD: Final = RECORD_FIELDS.index("thread")
_DEVICE: Final = RECORD_FIELDS.index("device")


_CACHED_ROWS: Final = 2048
"""Records that are turned into columns at once: as many as a processor's nearest caches hold."""

_LISTS: Final = ("_batches", "regions", "marks", "counters", "events", "samples", "counted")


class CountedKernel(NamedTuple):
    """Counters of one kernel, by their columns; its native record has the same plan, step and start."""

    plan: int
    step: int
    start_ns: int
    columns: Mapping[str, float]


@dataclass
class Watermark:
    """How much of a recording went into its parts so far."""

    counts: dict[str, int] = field(default_factory=dict)
    _places: dict[int, Presence] = field(default_factory=dict)
    _latest: list[Presence] = field(default_factory=list)
    _presences: int = 0

    def presences_with(self, presences: Sequence[Presence]) -> list[Presence]:
        """Those that the next part needs: what came since the last part; what came in that part, as a kernel that ran
        then may be drained now; and where each thread was before.
        """
        news = list(presences[self._presences :])
        self._presences += len(news)
        made = [*self._places.values(), *self._latest, *news]
        self._places |= {each.thread: each for each in self._latest}
        self._latest = news
        return made


class Recording:
    """The events of one session as they came, without the session. Instants are nanoseconds of `time.monotonic_ns`."""

    def __init__(self, *, record_shapes: bool = False, only_totals: bool = False) -> None:
        self.pid = os.getpid()
        self.start_ns = 0
        self.start_unix_ns = 0
        """The same instant on the clock of the wall, to within what the two readings lie apart."""
        self.end_ns: int | None = None
        self.clock_offset_ns: int | None = None
        """What to add to this clock of the wall for that of rank 0, None where nobody compared them."""
        self.clock_uncertainty_ns: int | None = None
        self.launched = 0
        self.recorded = 0
        """Native records that were taken up."""
        self.overwritten = 0
        self.unfinished = 0
        self.unmeasured: dict[str, int] = {}
        self.windows = Windows()
        """When events were kept, by the session's schedule."""
        self.about: dict[str, Any] = {}
        """What the session says of itself: further entries of the metadata, as plain JSON."""
        self.capability: dict[str, str] = {}
        """Why activities, and columns of the trace, are not recorded."""
        self.regions: list[RegionEvent] = []
        self.presences: list[Presence] = []
        """In which regions threads were."""
        self.marks: list[tuple[int, str, int]] = []  # (time, name, thread)
        self.counters: list[tuple[int, str, float, str]] = []  # (time, name, value, unit)
        self.counted: list[CountedKernel] = []
        self.events: list[RecordedEvent] = []
        self.issued: list[IssuedWork] = []
        self.thread_names: dict[int, str] = {}
        """The names of threads whose work is recorded, also of those that have ended since."""
        self.plans: dict[int, facts.Expression] = {}
        """What the plans that ran compute, by number, once the session has ended."""
        self.told_plans: frozenset[int] = frozenset()
        """Plans of which earlier parts of a spill say what they compute."""
        self.tiles: list[dict[str, Any]] = []
        """Rows of `graph.profile` while the session was on, as plain JSON."""
        self.record_shapes = record_shapes
        self._services: Mapping[int, Sequence[Service]] | None = None
        self.samples: list[polars.DataFrame] = []
        """What was sampled, as rows of a trace."""
        self.callers: Callers | None = None
        """The stacks at which operators were made, where they are asked for."""
        self._totals = Totals() if only_totals else None
        self._batches: list[NDArray[numpy.int64]] = []
        self._facts: dict[int, Sequence[StepFacts]] = {}

    @property
    def dropped(self) -> int:
        """Kernels that ran and are not among the records; `launched == recorded + dropped`. Those of GPUs are among
        them: `unmeasured` counts them by device.
        """
        return self.overwritten + self.unfinished + sum(self.unmeasured.values())

    def dropped_reasons(self) -> dict[str, int]:
        """Why kernels are not among the records, and how many."""
        unmeasured = {f"not measured on {device}": kernels for device, kernels in self.unmeasured.items()}
        return {"overwritten": self.overwritten, "unfinished": self.unfinished, **unmeasured}

    def keeps(self, instant_ns: int) -> bool:
        """Whether what began at this instant of `time.monotonic_ns` is kept."""
        return self.windows.hold(instant_ns)

    def take(self, drained: Drained) -> None:
        """Adds what the ring gave."""
        self.launched += drained.launched
        self.overwritten += drained.overwritten
        self.unfinished += drained.unfinished
        self.recorded += len(drained.records)
        if len(drained.records):
            self._add(drained.records)

    def _add(self, rows: NDArray[numpy.int64]) -> None:
        if self._totals is not None:
            self._totals.add(rows)
            return
        # Word 0 has served its purpose in records of CPUs: 56 bytes are kept of each.
        self._batches.append(rows if rows[:, _DEVICE].any() else rows[:, 1:].copy())
        self._name_threads(distinct(rows[:, _THREAD]))

    def take_device(self, measured: Sequence[Measured], counted: Sequence[CountedKernel] = ()) -> None:
        """Adds kernels whose times GPUs have told, and what was `counted` of them; that they were launched is known."""
        if self._totals is None:
            self.counted += counted
        for run, rows in measured:
            self.unmeasured[run.device] -= len(rows)
            if not self.unmeasured[run.device]:
                del self.unmeasured[run.device]
            self.recorded += len(rows)
        for _, rows in measured:
            self._add(rows)

    def _name_threads(self, threads: set[int]) -> None:
        unnamed = threads - self.thread_names.keys()
        if unnamed:
            self.thread_names = tracks.names(unnamed) | self.thread_names

    def keep_facts(self) -> None:
        """Reads the facts of every plan that ran, which may go with their plans after the session, and what threads
        did.
        """
        self._services = tracks.known()
        self._name_threads({each.thread for each in self.regions} | {each.thread for each in self.events})
        for plan_id in self.ran() - self._facts.keys():
            self._facts[plan_id] = facts.of_plan(plan_id)
        self.plans = facts.expressions(self._facts)
        self.clock_offset_ns, self.clock_uncertainty_ns = clock_sync.told(self.start_ns, self.start_unix_ns)

    def plan_facts(self, plan_id: int) -> Sequence[StepFacts]:
        """What the compiler said about all steps of a plan."""
        steps = self._facts.get(plan_id)
        if steps is None:
            steps = self._facts[plan_id] = facts.of_plan(plan_id)
        return steps

    def step_facts(self, plan_id: int, step_id: int) -> StepFacts:
        """What the compiler said about a step."""
        return facts.choose(self.plan_facts(plan_id), plan_id, step_id)

    def kernel_rows(self) -> NDArray[numpy.int64]:
        """The native records in order of their start; columns as in `layout.RECORD_FIELDS`, times in nanoseconds of
        `time.monotonic_ns`.
        """
        rows = self._rows()
        starts = rows[:, _START]
        if not bool((starts[1:] >= starts[:-1]).all()):
            rows = numpy.take(rows.T, numpy.argsort(starts, kind="stable"), axis=1).T
        return rows

    def totals(self) -> list[OperatorTotal]:
        """Sums over kernels, in order of their first one."""
        totals = self._totals
        if totals is None:
            totals = Totals()
            totals.add(self.kernel_rows())
        return [OperatorTotal.of(each, self.step_facts(each.plan, each.step)) for each in totals.values()]

    def _rows(self) -> NDArray[numpy.int64]:
        """All native records, column after column in memory: what reads one column is several times as fast then."""
        batches = list(self._batches)
        rows = numpy.empty((sum(map(len, batches)), RECORD_WORDS), numpy.int64, order="F")
        end = 0
        for batch in batches:
            for first in range(0, len(batch), _CACHED_ROWS):
                part = batch[first : first + _CACHED_ROWS]
                begin, end = end, end + len(part)
                rows[begin:end, -part.shape[1] :] = part
                rows[begin:end, : -part.shape[1]] = 0
        return rows

    def take_rows(self) -> NDArray[numpy.int64]:
        """The native records since the last call, which are then held no more."""
        rows = numpy.ascontiguousarray(self._rows())
        self._batches.clear()
        return rows

    def adopt(
        self,
        batches: Sequence[NDArray[numpy.int64]],
        steps: Mapping[int, Sequence[StepFacts]],
        plans: Mapping[int, facts.Expression],
        services: Mapping[int, list[Service]],
    ) -> None:
        """Takes over what a session of another process recorded: native records, the facts of its plans, what they
        compute, and what its threads did.
        """
        self._batches.extend(batches)
        self.recorded += sum(len(batch) for batch in batches)
        self._facts.update(steps)
        self.plans.update(plans)
        self._services = dict(services)

    def part(self, told: Watermark) -> Recording:
        """What came since the last call with the same `told`; with the sums of everything so far."""
        made = Recording(record_shapes=self.record_shapes)
        made.__dict__.update({name: value for name, value in self.__dict__.items() if name in made.__dict__})
        for name in _LISTS:
            news = list(getattr(self, name)[told.counts.get(name, 0) :])
            setattr(made, name, news)
            told.counts[name] = told.counts.get(name, 0) + len(news)
        # After the records, so that nothing ran before its thread was seen.
        made.presences = told.presences_with(self.presences)
        return made

    @property
    def anything(self) -> bool:
        """Whether there are events."""
        return any(getattr(self, name) for name in _LISTS)

    def metadata(self) -> dict[str, Any]:
        """What a trace says of the session, as plain JSON."""
        return {
            "format": FORMAT_VERSION,
            "source": "tessera",
            "launched": self.launched,
            "recorded": self.recorded,
            "dropped": self.dropped,
            "dropped_reasons": self.dropped_reasons(),
            "start_unix_ns": self.start_unix_ns,
            "duration_ns": None if self.end_ns is None else self.end_ns - self.start_ns,
            "ranks": {str(rank()): self._own_rank()},
            **recorded_target.told(),
            "versions": _versions(),
            "command": shlex.join(sys.argv),
            "thread_names": {str(thread): name for thread, name in self.thread_names.items()},
            "totals": [] if self._totals is None else [asdict(total) for total in self.totals()],
            "plans": {str(number): tell() for number, tell in self._expressions().items()},
            **({"tiles": self.tiles} if self.tiles else {}),
            **self.about,
        }

    def _own_rank(self) -> dict[str, Any]:
        own = {"host": files.host_name(), "pid": self.pid, "start_unix_ns": self.start_unix_ns}
        return own | {"clock_offset_ns": self.clock_offset_ns, "uncertainty_ns": self.clock_uncertainty_ns}

    @property
    def services(self) -> Mapping[int, Sequence[Service]]:
        """What threads served, so far or while the session was on."""
        return tracks.known() if self._services is None else self._services

    def _expressions(self) -> Mapping[int, facts.Expression]:
        return {**facts.expressions(self.ran() - self.plans.keys() - self.told_plans), **self.plans}

    def ran(self) -> set[int]:
        """The plans that ran."""
        summed = {total.plan for total in self._totals.values()} if self._totals is not None else set()
        return summed.union(*[distinct(batch[:, _PLAN - RECORD_WORDS]) for batch in self._batches])


def _versions() -> dict[str, str]:
    """Of Tessera, Python, and torch where that is loaded."""
    torch = sys.modules.get("torch")
    known = {"tessera": VERSION, "python": platform.python_version()}
    return known if torch is None else {**known, "torch": str(torch.__version__)}


def distinct(numbers: NDArray[numpy.int64]) -> set[int]:
    """The different ones among numbers. `numpy.unique` would import a module at its first call, for which a program
    that is attached to while it runs waited 0.1 s.
    """
    ordered = numpy.sort(numbers)
    return {*ordered[:1].tolist(), *ordered[1:][ordered[1:] != ordered[:-1]].tolist()}


def rank() -> int:
    """This process's rank in torch.distributed's default group, 0 without one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())
