"""What the tuner asks of its surroundings: a space to search, a problem to solve, and the compiler that poses it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.scheduling.schedule import Schedule
from tessera.tuning.identity import Identity
from tessera.tuning.trial import Trial
from tessera.tuning.workload import Case


class SearchSpace(Protocol):
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

    def draw(self, generator: random.Random) -> Schedule:
        """A random legal schedule."""
        ...

    def why_empty(self) -> Sequence[str]:
        """For an error message: which rule rejects how many."""
        ...


@dataclass(frozen=True)
class TuningProblem:
    """One kernel of one shape, ready to tune.

    `build` compiles a schedule to a case and raises a `TesseraError` where it cannot; all cases of a problem share
    one `Workload` object. `prepare` is told which schedules will be built next, so that they can be compiled together.
    `predict` gives the cost model's seconds per call. `generator` is the code generator's
    revision, kept as provenance.
    """

    identity: Identity
    space: SearchSpace
    build: Callable[[Schedule], Case]
    predict: Callable[[Schedule], float]
    generator: str
    prepare: Callable[[Sequence[Schedule]], None] = lambda schedules: None


class TuningBackend(Protocol):
    """What the compiler implements for `autotune`."""

    @property
    def archs(self) -> Sequence[str]:
        """The processors of this machine, GPUs among them, as `Identity.arch` names them."""
        ...

    def subject(self, op: object, shapes: object, dtype: object, device: object = None) -> TuningProblem:
        """The problem that `autotune(op, shapes=shapes, dtype=dtype, device=device)` speaks of; raises a `TesseraError`
        for what is none.
        """
        ...


@dataclass(frozen=True)
class Progress:
    """How far a search is: trials made of at most `limit`, and the best seconds per call so far (infinite before the
    first).
    """

    subject: str
    done: int
    limit: int
    best_s: float
    trial: Trial


ProgressHook = Callable[[Progress], None]
