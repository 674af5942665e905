"""Schedules for shapes that nobody measured: from measured neighbours and the cost model, at no measurement.

The model says how a schedule's time changes with the shape; what it errs by on a knob is much the same for shapes
nearby. So what the neighbours' trials say of its error (`gaussian_process.py`, with extents among the columns) corrects
what it predicts here, and the best of the schedules that did well there, of the default, and of nothing else is taken:
the favourite of a whole space would be what the model errs most about.

Sizes of dynamic dimensions are taken in buckets: one decision serves all shapes with the same powers of two above their
extents, so that a program that meets ever new sizes decides, and compiles, a few times only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sizes import size_class
from tessera.tuning.interfaces import TuningProblem, TuningSpace, predicted
from tessera.tuning.model.gaussian_process import FLOOR, Array, Encoding, FeatureColumns, GaussianProcess, log_seconds
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import schedule_of, seconds_of
from tessera.tuning.store.identity import Identity, log_shape

WITHIN: Final = 4.0
"""Octaves, all extents taken together, up to which a measured shape says something about another one."""
MOST: Final = 6
"""Neighbours that are asked."""
OFFERED: Final = 8
"""A neighbour's fastest schedules that are taken into account here."""
LEARNT: Final = 16
"""A neighbour's fastest schedules that tell what the model errs by."""
CAUTION: Final = 0.5
"""Standard deviations that are added to what is expected of a schedule: of two alike the better known one is taken."""


CONVINCING: Final = 0.05
"""The gain over the default that has to be expected of another schedule."""


class Known(NamedTuple):
    """A schedule that ran: measured and, where known, predicted seconds per call."""

    schedule: Schedule
    measured_s: float
    predicted_s: float | None


@dataclass(frozen=True)
class Neighbour:
    """A measured shape of a kernel, and what ran there, the fastest first."""

    shape: tuple[int, ...]
    trials: tuple[Known, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], trials: Iterable[Known]) -> Neighbour:
        """Of trials in the order made: of a schedule that was measured again the last time counts."""
        last = {known.schedule: known for known in trials}
        return cls(shape, tuple(sorted(last.values(), key=lambda known: (known.measured_s, str(known.schedule)))))


@dataclass(frozen=True)
class Transferred:
    """A schedule for a shape that was not measured; `expected_s` seconds per call, None where no prediction of a
    neighbour is known.
    """

    schedule: Schedule
    expected_s: float | None
    note: str


def schedule_for(problem: TuningProblem, neighbours: Sequence[Neighbour]) -> Transferred | None:
    """The schedule that should be fastest for a problem, from other shapes of its kernel; None where none of theirs is
    legal here, nor the default.
    """
    asked = [neighbour for neighbour in neighbours if len(neighbour.shape) == len(problem.identity.shape)]
    offered = list(dict.fromkeys(_offered(problem.space, asked)))
    if not asked or not offered:
        return None
    learnt = [
        (neighbour.shape, known)
        for neighbour in asked
        for known in neighbour.trials[:LEARNT]
        if known.predicted_s and set(known.schedule) == set(offered[0])
    ]
    source = f"{len(asked)} measured shapes nearby, the nearest of them {'x'.join(map(str, asked[0].shape))}"
    if not learnt:
        return Transferred(offered[0], None, f"the winner of {source}")
    seconds, caution = _corrected(problem, offered, learnt)
    careful = seconds * caution
    best = int(np.argmin(careful))
    default = offered.index(problem.space.default) if problem.space.default in offered else best
    if careful[default] <= careful[best] * (1 + CONVINCING):
        best = default
    return Transferred(offered[best], float(seconds[best]), f"from the model and {source}")


def _offered(space: TuningSpace, neighbours: Sequence[Neighbour]) -> Iterator[Schedule]:
    """What did well in the neighbourhood, as far as it is legal here, the nearest shape's winner first; the default."""
    for neighbour in neighbours:
        for known in neighbour.trials[:OFFERED]:
            schedule = adapted(space, known.schedule)
            if schedule is not None:
                yield schedule
    if not space.violations(space.default):
        yield space.default


def adapted(space: TuningSpace, schedule: Schedule) -> Schedule | None:
    """A schedule of another shape, made legal: the default with as many of its knobs as the rules permit, one after
    another; None where it has other knobs, or the default is not legal.
    """
    if space.unlike(schedule):
        return None
    if not space.violations(schedule):
        return schedule
    legal = space.default
    if space.violations(legal):
        return None
    for _ in range(2):  # what one knob forbids may be permitted once another is set
        for knob, value in schedule.items():
            moved = legal.replace(**{knob: value})
            legal = legal if space.violations(moved) else moved
    return legal


def _corrected(
    problem: TuningProblem, offered: Sequence[Schedule], learnt: Sequence[tuple[tuple[int, ...], Known]]
) -> tuple[Array, Array]:
    """Seconds expected of each offered schedule, and by what factor they may turn out to be more."""
    there_log = log_seconds([known.predicted_s for _, known in learnt if known.predicted_s])
    here = log_seconds(predicted(problem.predict, offered))
    encoding = Encoding([*offered, *(known.schedule for _, known in learnt)])
    shapes = np.array([log_shape(shape) for shape, _ in learnt])
    there = np.column_stack([shapes, encoding.rows([known.schedule for _, known in learnt])])
    shape = log_shape(problem.identity.shape)
    rows = np.column_stack([np.tile(shape, (len(offered), 1)), encoding.rows(offered)])
    errors = np.log([known.measured_s for _, known in learnt]) - there_log
    columns = FeatureColumns(encoding.unordered, len(shape))
    belief = GaussianProcess(columns, there, errors, np.full(len(learnt), 2 * FLOOR)).belief(rows)
    # What is uncertain of all of them alike, the model's error for this shape at all, decides nothing.
    deviation = np.sqrt(belief.variance - belief.variance.min())
    return np.exp(here + belief.mean), np.exp(CAUTION * deviation)


def neighbours_of(database: TuningDatabase, identity: Identity) -> list[Neighbour]:
    """The measured shapes of a kernel that are near enough to learn from, the nearest first, with the trials logged
    here; of those that came with a cache only the winner is known.
    """
    near = []
    for found in database.neighbours(identity, MOST + 1, WITHIN):
        entry = found.entry
        if entry.identity == identity:  # its winner is not legal any more, or nobody would ask
            continue
        assert entry.measured_s is not None
        winner = Known(entry.schedule, entry.measured_s, entry.predicted_s)
        logged = [known for record in database.trials(entry.identity) if (known := _known(record)) is not None]
        near.append(Neighbour.of(entry.identity.shape, [*logged, winner]))
    return near[:MOST]


def _known(record: Mapping[str, Any]) -> Known | None:
    """The trial of a line of the log, None for one that failed or cannot be read."""
    try:
        measured, predicted = seconds_of(record.get("median_s")), seconds_of(record.get("predicted_s"))
        return None if measured is None else Known(schedule_of(record["schedule"]), measured, predicted)
    except (KeyError, ValueError):  # a line that is spoiled
        return None


class Unseen:
    """Decisions for shapes that nobody measured, one for each kernel and bucket: that of the first shape of the bucket
    that is met, until this process stores another winner of the kernel. For several threads.
    """

    def __init__(self) -> None:
        self._decided: dict[tuple[TuningDatabase, str, tuple[int, ...]], tuple[int, Transferred | None]] = {}

    def decision(
        self,
        database: TuningDatabase,
        identity: Identity,
        permits: Callable[[Schedule], bool],
        problem: Callable[[], TuningProblem],
    ) -> Transferred | None:
        """What was decided for the bucket of an identity, or is decided now, for the `problem` that is posed then. None
        where nothing nearby was measured, and for a shape of the bucket that does not permit the schedule.
        """
        family = identity.family()
        key = (database, family, tuple([size_class(extent) for extent in identity.shape]))
        stored, (since, found) = database.stored(family), self._decided.get(key, (-1, None))
        if since != stored:
            near = neighbours_of(database, identity)
            found = schedule_for(problem(), near) if near else None
            self._decided[key] = stored, found
        return found if found is not None and permits(found.schedule) else None

    def clear(self) -> None:
        """Forgets all decisions: other caches are looked into from now on."""
        self._decided.clear()
