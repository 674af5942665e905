"""Tuning one problem: by the cost model alone, or by measuring what the search proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import TesseraError
from tessera.scheduling.schedule import Schedule
from tessera.tuning.database import TuningDatabase
from tessera.tuning.entry import Entry
from tessera.tuning.identity import Provenance
from tessera.tuning.interfaces import Progress, ProgressHook, TuningProblem
from tessera.tuning.measurement import Effort, Measurer
from tessera.tuning.ranking import ranked
from tessera.tuning.search import SearchLimits, SearchResult, search
from tessera.tuning.trial import Trial
from tessera.tuning.workload import Case


def tune_by_model(problem: TuningProblem, provenance: Provenance) -> Entry:
    """The schedule that the cost model predicts to be fastest. Raises E_TUNE_SPACE_EMPTY."""
    seconds, schedule = ranked(problem.space, problem.predict)[0]
    return Entry(problem.identity, schedule, "model", provenance, predicted_s=seconds)


def tune_on_device(
    problem: TuningProblem,
    provenance: Provenance,
    measurer: Measurer,
    limits: SearchLimits,
    database: TuningDatabase,
    progress: ProgressHook | None = None,
) -> tuple[Entry, SearchResult]:
    """The schedule that is measured to be fastest, and the search that found it; every trial is logged as it is made.

    Raises E_TUNE_SPACE_EMPTY, and E_TUNE_FAILED if no candidate runs or no measuring process can be started.
    """
    evaluation = _Evaluation(problem, provenance, measurer, limits, database, progress)
    result = search(problem.space, problem.predict, evaluation, limits)
    best = result.best
    entry = Entry(
        problem.identity, best.schedule, "measured", provenance, best.predicted_s, best.seconds, len(result.trials)
    )
    return entry, result


class _Evaluation:
    """What the search calls: builds the candidates, measures those that build, logs and reports."""

    def __init__(
        self,
        problem: TuningProblem,
        provenance: Provenance,
        measurer: Measurer,
        limits: SearchLimits,
        database: TuningDatabase,
        progress: ProgressHook | None,
    ) -> None:
        self._problem = problem
        self._context: dict[str, Any] = {"provenance": provenance.to_json()}
        self._measurer = measurer
        self._limit = limits.max_trials
        self._database = database
        self._progress = progress
        # Kept for the finals and because the incumbent is measured again with every batch; an object takes tens of
        # kilobytes.
        self._cases: dict[Schedule, Case | str] = {}
        self._seen: set[Schedule] = set()
        self._best_s = float("inf")

    def __call__(self, schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
        self._problem.prepare([schedule for schedule in schedules if schedule not in self._cases])
        built = {schedule: self._build(schedule) for schedule in schedules}
        # Schedules that a knob without effect tells apart give the same code: it is measured once.
        leaders: dict[Case, Schedule] = {}
        for schedule, case in built.items():
            if isinstance(case, Case):
                leaders.setdefault(case, schedule)
        cases = [(schedule, case) for case, schedule in leaders.items()]
        measured = {trial.schedule: trial for trial in self._measurer.measure(cases, effort)}
        trials = []
        for schedule, case in built.items():
            if isinstance(case, str):
                trial = Trial(schedule, "compile_error", detail=case)
            else:
                trial = replace(measured[leaders[case]], schedule=schedule)
            trials.append(replace(trial, predicted_s=self._problem.predict(schedule)))
        self._database.log(self._problem.identity, trials, self._context)
        self._tell(trials)
        return trials

    def _build(self, schedule: Schedule) -> Case | str:
        """The case of a schedule, or why it does not compile."""
        known = self._cases.get(schedule)
        if known is None:
            try:
                known = self._problem.build(schedule)
            except TesseraError as error:
                known = str(error)
            self._cases[schedule] = known
        return known

    def _tell(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._best_s = min(self._best_s, trial.seconds)
            if trial.schedule in self._seen:
                continue
            self._seen.add(trial.schedule)
            if self._progress is not None:
                done = len(self._seen)
                self._progress(Progress(str(self._problem.identity), done, self._limit, self._best_s, trial))
