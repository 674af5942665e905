"""Builds schedules and times them in turn, in the package's own measuring process, keeping every sample."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType

from tessera.errors import TesseraError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.measurement import Effort, SubprocessMeasurer
from tessera.tuning.measure.protocol import Sample
from tessera.tuning.measure.trial import Outcome
from tessera.tuning.measure.workload import Case

KEPT = 1.35
"""Cases up to this factor slower than the fastest of their batch are kept, as they are likely to be timed again."""


@dataclass(frozen=True)
class Timed:
    """What became of a schedule. `samples` are those of its code, None where its code is that of another schedule."""

    outcome: Outcome
    code: str = ""
    detail: str = ""
    samples: tuple[Sample, ...] | None = None


class Timer:
    """Times schedules of one problem; a context, whose end is that of the measuring process."""

    def __init__(self, problem: TuningProblem) -> None:
        self.measurer = SubprocessMeasurer(observe=self._observe)
        self._problem = problem
        self._samples: dict[Schedule, list[Sample]] = {}
        self._cases: dict[Schedule, Case] = {}

    def __enter__(self) -> Timer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.measurer.close()

    def measure(
        self, schedules: Sequence[Schedule], effort: Effort, known: Collection[str] = frozenset()
    ) -> dict[Schedule, Timed]:
        """Times schedules against each other: of those that give the same code the first one, of those whose code is
        `known` none.
        """
        self._samples.clear()
        self._problem.prepare([schedule for schedule in schedules if schedule not in self._cases])
        built = {schedule: self._built(schedule) for schedule in schedules}
        codes = {schedule: digest(case) for schedule, case in built.items() if isinstance(case, Case)}
        leaders = {code: schedule for schedule, code in reversed(codes.items()) if code not in known}
        chosen = [schedule for schedule in codes if leaders.get(codes[schedule]) == schedule]
        cases = [(schedule, case) for schedule in chosen if isinstance(case := built[schedule], Case)]
        trials = {trial.schedule: trial for trial in self.measurer.measure(cases, effort)}
        result: dict[Schedule, Timed] = {}
        for schedule, case in built.items():
            if isinstance(case, str):
                result[schedule] = Timed("compile_error", detail=case)
            elif codes[schedule] in known:
                result[schedule] = Timed("ok", codes[schedule])
            else:
                trial = trials[leaders[codes[schedule]]]
                taken = tuple(self._samples.get(schedule, ())) if schedule == trial.schedule else None
                result[schedule] = Timed(trial.outcome, codes[schedule], trial.detail, taken)
        self._keep(built)
        return result

    def _built(self, schedule: Schedule) -> Case | str:
        """The case of a schedule, or why it does not compile."""
        try:
            return self._cases.get(schedule) or self._problem.build(schedule)
        except TesseraError as error:
            return str(error)

    def _observe(self, schedule: Schedule, sample: Sample) -> None:
        self._samples.setdefault(schedule, []).append(sample)

    def _keep(self, built: dict[Schedule, Case | str]) -> None:
        fastest = {schedule: min(sample.seconds for sample in taken) for schedule, taken in self._samples.items()}
        most = KEPT * min(fastest.values(), default=0.0)
        for schedule, case in built.items():
            if isinstance(case, Case) and fastest.get(schedule, float("inf")) <= most:
                self._cases[schedule] = case
            else:
                self._cases.pop(schedule, None)


def digest(case: Case) -> str:
    """Equal for candidates that launch the same code in the same way."""
    return hashlib.sha256(pickle.dumps((case.launches, case.temporaries))).hexdigest()[:12]
