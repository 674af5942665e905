"""Measures every schedule of a problem's recorded space, in the package's own measuring process.

First all once, with few samples: those several times slower than the best are timed no further. Then those near the
best again, in smaller circles with more samples. Schedules are timed in turn, a batch at a time; the default schedule
is part of every batch, so that batches can be compared.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import machine
from bench.tuning import machines
from bench.tuning.journal import Journal
from bench.tuning.problems import Posed, Problem
from bench.tuning.table import SUFFIX, About, Record, Role, Table, Turns, write
from bench.tuning.timing import Timed, Timer
from tessera.compiler.device import compilers
from tessera.errors import TuneFailedError
from tessera.lazy.threads import worker_count
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimate
from tessera.target.stored_ceilings import stored_ceilings
from tessera.tuning.measure.measurement import Effort
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.tuner import tune_on_device
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.identity import Provenance

SCREEN = Effort(rounds=3, sample_s=1e-3, lag=3.0, limit_s=0.05)
"""How every schedule is timed. One three times slower than the best of its batch, or that takes long, has two samples
only.
"""
CIRCLES: tuple[tuple[float, Effort], ...] = (
    (1.3, Effort(rounds=4, sample_s=2e-3, lag=3.0, limit_s=0.4)),
    (1.1, Effort(rounds=8, sample_s=2e-3, lag=3.0, limit_s=1.0)),
    (1.04, Effort(rounds=8, sample_s=4e-3, lag=3.0, limit_s=1.0)),
)
"""How those are timed again that are slower than the best by at most this factor, one circle after the other."""
BATCH = 12
LEAST_CLEAN = 2
"""Undisturbed samples of the anchor that tell how fast the machine was in a batch."""
SEED = 0
TUNED_TRIALS = 16
"""Trials of a tuning in the whole space, to which the best of the recorded part is compared."""


@dataclass
class Recorder:
    """Records one problem into a folder: `NAME.part` while it is at it, then the table.

    `deadline` is a time of `clock` after which no further batch begins: then only the part is there, and another
    recorder can go on with it. `most` bounds the schedules further. `report` is told how far it is.
    """

    problem: Problem
    folder: Path
    deadline: float = math.inf
    report: Callable[[str], None] = lambda text: None
    most: int | None = None
    clock: Callable[[], float] = time.monotonic
    timer: Timer = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.posed = self.problem.posed()
        self.legal = list(self.posed.space.candidates())
        name = f"{self.problem.name}-{worker_count()}t"
        self.path = self.folder / f"{name}{SUFFIX}"
        self.part = self.folder / f"{name}.part"

    def run(self) -> Table:
        """Records what is not recorded yet, and writes the table when it is whole; what there is by then.

        Raises TuneFailedError (E_TUNE_FAILED) where the default schedule or no schedule at all can be measured.
        """
        limit = min(self.problem.most, self.most or self.problem.most)
        self.journal = Journal(self.part, describe(self.problem, self.posed, len(self.legal), limit))
        circles = [partial(self._circle, number) for number in range(len(CIRCLES))]
        stages: list[Callable[[], bool]] = [self._known, self._tuned, self._screen, *circles]
        with Timer(self.posed.problem) as self.timer:
            finished = all(stage() for stage in stages)
        table = self.journal.table()
        if finished:
            write(table, self.path)
            machines.save(compilers.kernel_compiler().target, self.folder)
            self.part.unlink()
        return table

    # -- stages: each says whether it came to its end before the deadline -------------------------------------------

    def _known(self) -> bool:
        """The default, and further starts of the whole space."""
        whole = self.posed.whole
        roles: dict[Schedule, Role] = {start: "start" for start in whole.starts if not whole.violations(start)}
        roles[whole.default] = "default"
        missing = [schedule for schedule in roles if schedule not in self.journal.records]
        return self._all("known schedules", missing, SCREEN, roles)

    def _tuned(self) -> bool:
        """The winner of a tuning in the whole space."""
        if any(record.role == "tuned" for record in self.journal.records.values()):
            return True
        if self._late():
            return False
        problem = self.posed.problem
        provenance = Provenance.current(problem.generator, "on_device")
        with tempfile.TemporaryDirectory() as folder:
            limits, database = SearchLimits(max_trials=TUNED_TRIALS), TuningDatabase(Path(folder))
            entry, _ = tune_on_device(problem, provenance, self.timer.measurer, limits, database)
        return self._all("tuned", [entry.schedule], SCREEN, {entry.schedule: "tuned"})

    def _screen(self) -> bool:
        """Every schedule once, in an order drawn at random: as many of them as there is time for are a fair sample."""
        about = self.journal.about
        drawn = random.Random(about.seed).sample(self.legal, min(about.limit, len(self.legal)))
        return self._all("all", [one for one in drawn if one not in self.journal.records], SCREEN, {})

    def _circle(self, number: int) -> bool:
        """Those near the best that were not yet timed as often as this circle asks for, once more."""
        factor, effort = CIRCLES[number]
        table = self.journal.table()
        medians = {record.schedule: table.median(record.schedule) for record in table.records if record.turns}
        most = factor * min(medians.values())
        turns = {record.schedule: len(record.turns) for record in table.records}
        due = [one for one, seconds in medians.items() if seconds <= most and turns[one] < number + 2]
        random.Random(number).shuffle(due)
        return self._all(f"within {factor:g} of the best", due, effort, {}, again=True)

    # -- batches ------------------------------------------------------------------------------------------------------

    def _all(
        self,
        stage: str,
        schedules: Sequence[Schedule],
        effort: Effort,
        roles: Mapping[Schedule, Role],
        again: bool = False,
    ) -> bool:
        """Measures schedules batch by batch, each on disk before the next begins; whether all were."""
        begin = self.clock()
        for first in range(0, len(schedules), BATCH):
            if self._late():
                return False
            self._batch(schedules[first : first + BATCH], effort, roles, again)
            done = min(first + BATCH, len(schedules))
            left = (self.clock() - begin) / done * (len(schedules) - done)
            self.report(f"{self.problem.name}: {stage}, {done} of {len(schedules)}, {left:.0f} s left")
        return True

    def _late(self) -> bool:
        return self.clock() >= self.deadline

    def _batch(
        self, schedules: Sequence[Schedule], effort: Effort, roles: Mapping[Schedule, Role], again: bool
    ) -> None:
        anchor = self.posed.whole.default
        timed_before = {record.code for record in self.journal.records.values() if record.turns}
        own = self.journal.records[anchor].code if anchor in self.journal.records else ""
        known = set() if again else timed_before - {own}
        found = self.timer.measure(list(dict.fromkeys([anchor, *schedules])), effort, known)
        reference = found[anchor]
        if not reference.samples:
            how = f"{reference.outcome}, {reference.detail}"
            raise TuneFailedError(f"{self.problem.name}: the default schedule ended as {how}")
        fastest = min(sample.seconds for timed in found.values() for sample in timed.samples or ())
        estimates = self.posed.problem.estimates(list(found))
        records = [
            self._record(schedule, timed, effort.lag * fastest, roles.get(schedule, "space"), estimate)
            for (schedule, timed), estimate in zip(found.items(), estimates, strict=True)
        ]
        clean = [sample.seconds for sample in reference.samples if not sample.contended]
        self.journal.append(statistics.median(clean) if len(clean) >= LEAST_CLEAN else None, records)

    def _record(self, schedule: Schedule, timed: Timed, lag_s: float, role: Role, estimate: Estimate) -> Record:
        samples = timed.samples or ()
        seconds = tuple(sample.seconds for sample in samples)
        marks = tuple(sample.contended for sample in samples)
        turns = (Turns(self.journal.batches, seconds, marks),) if seconds and timed.outcome == "ok" else ()
        lagged = bool(turns) and min(seconds) > lag_s
        return Record(
            schedule, timed.outcome, turns, timed.code, lagged, role, timed.detail, estimate.seconds, estimate.terms
        )


def describe(problem: Problem, posed: Posed, legal: int, limit: int) -> About:
    """What stands at the head of a table."""
    known = stored_ceilings()
    space = posed.space
    return About(
        name=problem.name,
        operator=problem.operator,
        shapes=problem.shapes,
        dtype=problem.dtype,
        threads=worker_count(),
        cpu=machine.cpu_name(),
        cores=machine.cores(),
        versions=machine.versions(),
        identity=posed.problem.identity,
        family=posed.problem.family,
        provenance=Provenance.current(posed.problem.generator, "recorded"),
        ceilings=None if known is None else json.loads(known.to_json()),
        knobs={knob.name: knob.choices for knob in space.knobs},
        default=space.default,
        legal=legal,
        limit=limit,
        whole=posed.whole.size,
        seed=SEED,
    )
