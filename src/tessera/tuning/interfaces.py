"""What the tuner asks of its surroundings: a space to search, a problem to solve, and the compiler that poses it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tessera.scheduling.language.knobs import Rejections
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimates, Seconds
from tessera.tuning.measure.metrics import CallWork
from tessera.tuning.measure.trial import Trial
from tessera.tuning.measure.workload import Case
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Identity


class TuningSpace(Protocol):
    """The schedules of one kernel; `scheduling.knobs.Space` is one."""

    @property
    def default(self) -> Schedule:
        """The schedule of a kernel that nobody tuned."""
        ...

    @property
    def size(self) -> int:
        """Number of combinations of the knobs' choices, legal or not."""
        ...

    def candidates(self) -> Iterable[Schedule]:
        """All legal schedules, always in the same order."""
        ...

    def neighbours(self, schedule: Schedule) -> Sequence[Schedule]:
        """The legal schedules one step away."""
        ...

    def violations(self, schedule: Schedule) -> Sequence[str]:
        """Names of the rules that a schedule breaks; none means legal."""
        ...

    def unlike(self, schedule: Schedule) -> Sequence[str]:
        """The knobs in which a schedule of another shape, or out of a file, cannot be judged by rules."""
        ...

    def objections(self, schedule: Schedule) -> Sequence[str]:
        """What keeps a schedule of another shape, or out of a file, from being used; none means legal."""
        ...

    def draw(self, generator: random.Random) -> Schedule:
        """A random legal schedule."""
        ...

    def rejections(self) -> Rejections:
        """How many combinations each rule rejects."""
        ...

    def why_empty(self) -> Sequence[str]:
        """For an error message: which rule rejects how many."""
        ...


DOUBT: Final = 0.25
"""What analytical models err by: choices without a trial that promised a smaller gain over the default lost more than
they gained (27 kernels on Zen 4: share of the best 0.981 where 15 % convince, 0.984 so; of the learned model's choices
0.953 and 0.964).
"""

EstimateMany: TypeAlias = Callable[[Sequence[Schedule]], Estimates]
"""Estimates of schedules, `Columns` or others, in their order."""


@runtime_checkable
class BatchPredict(Protocol):
    """A prediction that costs little more for a thousand schedules than for one."""

    def __call__(self, schedule: Schedule, /) -> float:
        """Seconds per call of a schedule."""

    def many(self, schedules: Sequence[Schedule]) -> Seconds:
        """Seconds per call of each."""


def doubt_of(predict: Callable[[Schedule], float]) -> float:
    """How much of a gain a prediction has to promise before it overrules the default; 0.0 where it does not say."""
    return float(getattr(predict, "doubt", 0.0))


def predicted(predict: Callable[[Schedule], float], schedules: Sequence[Schedule]) -> Seconds:
    """Seconds per call of each of the schedules: at once where `predict` can do that."""
    if isinstance(predict, BatchPredict):
        return predict.many(schedules)
    return np.array([predict(schedule) for schedule in schedules], np.float64)


@dataclass(frozen=True)
class EstimatedSeconds:
    """The seconds of estimates, as a `BatchPredict`."""

    estimates: EstimateMany
    doubt: float = DOUBT

    def __call__(self, schedule: Schedule) -> float:
        return float(self.estimates([schedule]).seconds[0])

    def many(self, schedules: Sequence[Schedule]) -> Seconds:
        """Seconds per call of each."""
        return self.estimates(schedules).seconds


@dataclass(frozen=True)
class TuningProblem:
    """One kernel of one shape, ready to tune.

    `build` compiles a schedule to a case and raises a `TesseraError` where it cannot; all cases of a problem share
    one `Workload` object. `prepare` is told which schedules will be built next, so that they can be compiled together.
    `predict` gives the cost model's seconds per call. `generator` is the code generator's revision, kept as provenance.
    `estimated` gives the analytical estimates. `family` names the kernel's family ("contraction"), "" for none. `adopt`
    makes the code of a winner, so that no later call has to; `abort` ends what `build` waits for, from another thread.
    `absent` says why nothing can be measured here; it is empty where candidates can run. `work` says what one call
    does, for the metrics of trials.
    """

    identity: Identity
    space: TuningSpace
    build: Callable[[Schedule], Case]
    predict: Callable[[Schedule], float]
    generator: str
    prepare: Callable[[Sequence[Schedule]], None] = lambda schedules: None
    estimated: EstimateMany | None = field(default=None, repr=False)
    family: str = ""
    adopt: Callable[[Schedule], None] = lambda schedule: None
    abort: Callable[[], None] = lambda: None
    absent: str = ""
    work: CallWork | None = None

    def estimates(self, schedules: Sequence[Schedule]) -> Estimates:
        """What the analytical model says of schedules, whatever model predicts: seconds by resource, and what binds.
        Where the problem has none, the seconds of `predict`, and nothing that holds them up.
        """
        if self.estimated is None:
            return Estimates(predicted(self.predict, schedules), {}, {})
        return self.estimated(schedules)


class TuningBackend(Protocol):
    """What the compiler implements for `autotune`."""

    @property
    def archs(self) -> Sequence[str]:
        """The processors of this machine, the CPU first and GPUs behind it, as `Identity.arch` names them."""
        ...

    def subject(self, op: object, shapes: object, dtype: object, device: object = None) -> TuningProblem:
        """The problem that `autotune(op, shapes=shapes, dtype=dtype, device=device)` speaks of; raises a `TesseraError`
        for what is none.
        """
        ...

    def objection(self, entry: Entry) -> str | None:
        """What speaks against an entry that comes from elsewhere: its schedule is illegal for the kernel that its
        identity names. None where nothing does, and where the kernel is not known before it is used.
        """
        ...


@dataclass(frozen=True)
class Progress:
    """How far a search is: trials made of at most `limit`, and the best seconds per call so far (infinite before the
    first). `trial` was just made; it is None where a batch begins. `trying` is compiled or timed next, None in finals.
    """

    subject: str
    done: int
    limit: int
    best_s: float
    trial: Trial | None
    trying: Schedule | None = None


ProgressHook = Callable[[Progress], None]
