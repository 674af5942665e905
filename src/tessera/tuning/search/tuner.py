"""Tuning one problem: by the cost model alone, or by measuring what the search proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import TesseraError, TuneFailedError
from tessera.scheduling.language.schedule import Schedule
from tessera.system.files import host_name
from tessera.tuning.interfaces import Progress, ProgressHook, TuningProblem
from tessera.tuning.measure.conditions import Conditions
from tessera.tuning.measure.measurement import Effort, Measurer, SubprocessMeasurer
from tessera.tuning.measure.metrics import metrics_of
from tessera.tuning.measure.trial import Stage, Trial, drift
from tessera.tuning.measure.workload import Case, Workload
from tessera.tuning.model.own import context_of
from tessera.tuning.model.ranking import favourite
from tessera.tuning.search.interruption import Interruption
from tessera.tuning.search.ranks import current_team
from tessera.tuning.search.search import Evaluate, SearchLimits, SearchResult, search
from tessera.tuning.search.strategy import StrategyFor, StrategyName
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.earlier_trials import earlier_trials
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Provenance


def tune_by_model(problem: TuningProblem, provenance: Provenance) -> Entry:
    """What the cost model chooses (`ranking.favourite`). Raises E_TUNE_SPACE_EMPTY."""
    seconds, schedule = favourite(problem.space, problem.predict)
    return Entry(problem.identity, schedule, "model", provenance, predicted_s=seconds)


def tune_on_device(
    problem: TuningProblem,
    provenance: Provenance,
    measurer: Measurer,
    limits: SearchLimits,
    database: TuningDatabase,
    progress: ProgressHook | None = None,
    strategy: StrategyName | StrategyFor = "guided",
    conditions: Conditions | None = None,
) -> tuple[Entry, SearchResult]:
    """The schedule that is measured to be fastest, and the search that found it.

    Every trial is on disk before the next one begins, and those of a tuning that was interrupted are taken over.
    `conditions` are those of the problem's workload unless given. `q` on the terminal, or Ctrl-C once, ends the search
    with the best so far. The ranks of a `ranks.team()` search together.

    Raises E_TUNE_SPACE_EMPTY, and E_TUNE_FAILED if no candidate runs or no measuring process can be started.
    """
    if conditions is not None:
        provenance = replace(provenance, mode=conditions.named(provenance.mode))
    evaluation = Evaluation(problem, provenance, measurer, limits, database, progress, conditions)
    team = current_team()

    def lead(evaluate: Evaluate) -> SearchResult:
        with Interruption() as asked:

            def alone(schedules: Sequence[Schedule], effort: Effort) -> Sequence[Trial]:
                with asked.breaking_off():
                    return evaluate(schedules, effort)

            # Ranks wait for one another: what one of them breaks off, the others would wait for.
            measured = alone if team is None else evaluate
            return search(problem.space, problem.predict, measured, limits, strategy=strategy, stop=asked.reason)

    result = lead(evaluation) if team is None else team.search(str(problem.identity), lead, evaluation)
    best = result.best
    expected_s = best.predicted_s if best.predicted_s is not None and math.isfinite(best.predicted_s) else None
    trials = len(result.trials)
    entry = Entry(problem.identity, best.schedule, "measured", provenance, expected_s, best.seconds, trials)
    return entry, result


class Evaluation:
    """What the search calls: builds the candidates, measures those that build, logs and reports."""

    def __init__(
        self,
        problem: TuningProblem,
        provenance: Provenance,
        measurer: Measurer,
        limits: SearchLimits,
        database: TuningDatabase,
        progress: ProgressHook | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self._problem = problem
        self._context: dict[str, Any] = {"host": host_name(), "provenance": provenance.to_json()}
        self._measurer = measurer
        self._limit = limits.max_trials
        self._database = database
        self._progress = progress
        self._conditions = conditions
        self._earlier = earlier_trials(database, problem.identity, provenance)
        # Kept for the finals and because the incumbent is measured again with every batch; an object takes tens of
        # kilobytes.
        self._cases: dict[Schedule, Case | str] = {}
        self._workloads: dict[str, Workload] = {}
        self._logged: set[tuple[Schedule, Stage]] = set()
        self._told: set[Schedule] = set()
        self._batch: Sequence[Schedule] = ()
        self._best_s = float("inf")

    def __call__(self, schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
        """A trial for each schedule, in order; what an interrupted tuning measured is measured again in finals only."""
        if not schedules:
            return []
        known = {each: self._earlier[each] for each in schedules if each in self._earlier and effort.one_by_one}
        for trial in known.values():
            self._tell(trial)
        asked = [schedule for schedule in schedules if schedule not in known]
        if asked and schedules[0] in known:
            asked.insert(0, schedules[0])  # the others are compared with it
        measured = self._measure(asked, effort) if asked else {}
        first = schedules[0]
        then, now = known.get(first), measured.get(first)
        slower = drift(then.timing, now.timing) if then is not None and now is not None else 1.0
        return [measured.get(schedule) or _scaled(known[schedule], slower) for schedule in schedules]

    def _measure(self, schedules: Sequence[Schedule], effort: Effort) -> dict[Schedule, Trial]:
        """Builds and measures; every trial is logged and told as soon as it is made."""
        stage: Stage = "screen" if effort.one_by_one else "final"
        self._batch = schedules
        self._report(None)
        if isinstance(self._measurer, SubprocessMeasurer):
            self._measurer.start()  # it imports torch while candidates compile
        self._problem.prepare([schedule for schedule in schedules if schedule not in self._cases])
        trials: dict[Schedule, Trial] = {}
        # Schedules that a knob without effect tells apart give the same code: it is measured once.
        same: dict[Case, list[Schedule]] = {}
        for schedule in schedules:
            built = self._build(schedule)
            if isinstance(built, Case):
                same.setdefault(built, []).append(schedule)
            else:
                trials[schedule] = self._made(Trial(schedule, "compile_error", detail=built, stage=stage), None)
        by_leader = {alike[0]: (case, alike) for case, alike in same.items()}

        def done(trial: Trial) -> None:
            case, alike = by_leader[trial.schedule]
            for schedule in alike:
                trials[schedule] = self._made(replace(trial, schedule=schedule, stage=stage), case)

        for trial in self._measurer.measure([(leader, case) for leader, (case, _) in by_leader.items()], effort, done):
            if trial.schedule not in trials:
                done(trial)
        return trials

    def _build(self, schedule: Schedule) -> Case | str:
        """The case of a schedule, or why it does not compile."""
        known = self._cases.get(schedule)
        if known is None:
            try:
                known = self._problem.build(schedule)
                if self._conditions is not None:
                    base = known.workload
                    shared = self._workloads.setdefault(base.key, base.under(self._conditions))
                    known = replace(known, workload=shared)
            except TuneFailedError:
                raise  # it is true of all candidates
            except TesseraError as error:
                known = str(error)
            self._cases[schedule] = known
        return known

    def _made(self, trial: Trial, case: Case | None) -> Trial:
        """A new trial with all that is known of it, written down."""
        trial = replace(trial, predicted_s=self._problem.predict(trial.schedule))
        if trial.timing is not None and case is not None:
            cache = trial.conditions.cache if trial.conditions is not None else case.workload.cache
            metrics = metrics_of(trial.seconds, self._problem.work, cache, case.occupancy_limit)
            trial = replace(trial, metrics=metrics)
        # The incumbent is timed beside every new candidate: that is no trial of its own. A failure always is.
        key = (trial.schedule, trial.stage)
        if key not in self._logged or trial.timing is None:
            self._logged.add(key)
            context = self._context | context_of(self._problem, trial.schedule)
            self._database.log(self._problem.identity, [trial], context)
        self._tell(trial)
        return trial

    def _tell(self, trial: Trial) -> None:
        self._best_s = min(self._best_s, trial.seconds)
        if trial.schedule in self._told:
            return
        self._told.add(trial.schedule)
        self._report(trial)

    def _report(self, trial: Trial | None) -> None:
        if self._progress is not None:
            trying = next((schedule for schedule in self._batch if schedule not in self._told), None)
            subject, done = str(self._problem.identity), len(self._told)
            self._progress(Progress(subject, done, self._limit, self._best_s, trial, trying))


def _scaled(trial: Trial, factor: float) -> Trial:
    return trial if trial.timing is None else replace(trial, timing=trial.timing.scaled(factor))
