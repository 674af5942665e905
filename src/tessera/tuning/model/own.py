"""The learned model of this machine: fitted to the trials that its tunings left in the log, beside what is shipped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tessera import settings
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Seconds
from tessera.tuning.interfaces import DOUBT, TuningProblem
from tessera.tuning.model.learned import Learned
from tessera.tuning.model.ridge import MeasuredSchedule
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import schedule_of, seconds_of
from tessera.tuning.store.identity import Identity

MOST_LINES: Final = 50_000
"""Lines of logs that are read at most: a second or two."""


def context_of(problem: TuningProblem, schedule: Schedule) -> dict[str, Any]:
    """What a line of the log says of a trial beside its time, for a model to learn from: plain JSON values. Empty for a
    problem that has no analytical model.
    """
    if problem.estimated is None:
        return {}
    (found,) = problem.estimates([schedule])
    terms = {name: seconds for name, seconds in found.terms.items() if math.isfinite(seconds)}
    known = {"family": problem.family, "default": problem.space.default.to_json(), "terms": terms}
    return {"model": {**known, "estimated_s": found.seconds}} if math.isfinite(found.seconds) else {}


def samples_of(database: TuningDatabase, generator: str) -> Iterator[MeasuredSchedule]:
    """What the logs of a database teach of kernels of one generator: of a schedule's trials the last one. Lines that
    lack what `context_of` writes, or are spoiled, teach nothing.
    """
    latest: dict[tuple[Identity, Schedule], MeasuredSchedule] = {}
    lines = (line for layer in database.layers for path in layer.logs() for line in database.log_lines(path))
    for line in itertools.islice(lines, MOST_LINES):
        try:
            sample = _sample(line, generator)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if sample is not None:
            latest[sample.identity, sample.schedule] = sample
    yield from latest.values()


def _sample(line: Mapping[str, Any], generator: str) -> MeasuredSchedule | None:
    """The sample of a line; None for a trial that failed, or of another generator, whose estimates were others."""
    if line["outcome"] != "ok" or line["provenance"]["generator"] != generator:
        return None
    model = line["model"]
    estimated, measured = seconds_of(model["estimated_s"]), seconds_of(line["median_s"])
    if estimated is None or measured is None:
        return None
    terms = {str(name): float(seconds) for name, seconds in model["terms"].items()}
    if not all(math.isfinite(seconds) for seconds in terms.values()):
        raise ValueError("a term is no time")
    return MeasuredSchedule(
        Identity.from_json(line["identity"]),
        str(model["family"]),
        schedule_of(model["default"]),
        schedule_of(line["schedule"]),
        estimated,
        terms,
        measured,
    )


class OwnLearned:
    """`Learned`, fitted when it is first asked: to the trials in the tuning cache where they are enough, for other
    processors and families what comes with the package. `excluding` leaves out identities, for figures on them.
    """

    name: Final = "learned"
    doubt: Final = DOUBT

    def __init__(
        self, database: TuningDatabase | None = None, excluding: Callable[[Identity], bool] = lambda identity: False
    ) -> None:
        self._database, self._excluding = database, excluding
        self._fitted: dict[str, Learned] = {}

    def seconds(self, problem: TuningProblem, schedules: Sequence[Schedule]) -> Seconds:
        """The corrected seconds of the problem's estimates."""
        return self.fitted(problem.generator).seconds(problem, schedules)

    def fitted(self, generator: str) -> Learned:
        """The model of kernels of one generator."""
        if generator not in self._fitted:
            database = self._database if self._database is not None else _current()
            own = Learned.fitted(samples_of(database, generator), self._excluding)
            self._fitted[generator] = own.over(Learned.shipped())
        return self._fitted[generator]


def _current() -> TuningDatabase:
    """The database of the cache folders that the settings name."""
    current = settings.current()
    site = (current.tune_site_dir,) if current.tune_site_dir is not None else ()
    return TuningDatabase(current.autotune_dir, site)
