"""What an interrupted tuning leaves on disk, and what the next one makes of it. Times come from a table."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.suites.tune_faults import told, victim
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.conditions import Conditions
from tessera.tuning.measure.measurement import FINAL, SCREEN, Done, Effort, ReplayMeasurer
from tessera.tuning.measure.trial import Outcome, Timing, Trial
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.tuner import Evaluation, tune_on_device
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.identity import Provenance
from tests.unit.tuning.support import MATMUL, OPTIMUM, PROVENANCE, SPACE, misled_seconds, problem, synthetic_table

SCHEDULES = list(SPACE.candidates())[:6]
LIMITS = SearchLimits(max_trials=16)


def unheard(trial: Trial) -> None:
    """Nobody waits for it."""


class Measurer(ReplayMeasurer):
    """Replays, and notes what was asked for in screening; `factor` makes the machine slower than it was."""

    def __init__(self, table: dict[Schedule, Timing | Outcome] | None = None, factor: float = 1.0) -> None:
        super().__init__(synthetic_table() if table is None else table)
        self.screened: list[Schedule] = []
        self.factor = factor

    def measure(self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard) -> list[Trial]:
        self.screened += [schedule for schedule, _ in cases if effort.one_by_one]
        trials = []
        for case in cases:
            (trial,) = super().measure([case], effort)
            trials.append(replace(trial, timing=trial.timing.scaled(self.factor)) if trial.timing else trial)
            done(trials[-1])
        return trials


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "cache", shipped=None)


def evaluation(database: TuningDatabase, measurer: Measurer, provenance: Provenance = PROVENANCE) -> Evaluation:
    return Evaluation(problem(), provenance, measurer, LIMITS, database)


def on_disk(database: TuningDatabase) -> list[Schedule]:
    return [Schedule.from_json(record["schedule"]) for record in database.trials(MATMUL)]


def test_every_trial_is_on_disk_before_the_next_begins(database: TuningDatabase) -> None:
    seen: list[int] = []

    class Watching(Measurer):
        def _trial(self, schedule: Schedule) -> Trial:
            seen.append(len(database.trials(MATMUL)))
            return super()._trial(schedule)

    evaluation(database, Watching())(SCHEDULES, SCREEN)
    assert seen == list(range(len(SCHEDULES)))


def test_the_incumbent_measured_again_is_no_trial_of_its_own(database: TuningDatabase) -> None:
    evaluate = evaluation(database, Measurer())
    evaluate(SCHEDULES[:3], SCREEN)
    evaluate([SCHEDULES[0], *SCHEDULES[3:]], SCREEN)
    assert on_disk(database) == SCHEDULES
    evaluate(SCHEDULES[:2], FINAL)
    assert [record["stage"] for record in database.trials(MATMUL)] == ["screen"] * 6 + ["final"] * 2


def test_a_tuning_that_did_not_end_is_taken_up_where_it_was(database: TuningDatabase) -> None:
    evaluation(database, Measurer())(SCHEDULES[:4], SCREEN)
    again = Measurer()
    trials = evaluation(database, again)(SCHEDULES[:4], SCREEN)
    assert again.screened == []
    assert [trial.schedule for trial in trials] == SCHEDULES[:4]
    assert [trial.timing for trial in trials] == [synthetic_table()[schedule] for schedule in SCHEDULES[:4]]


def test_what_is_new_is_compared_with_the_first_again(database: TuningDatabase) -> None:
    evaluation(database, Measurer())(SCHEDULES[:4], SCREEN)
    slower = Measurer(factor=3.0)
    trials = evaluation(database, slower)(SCHEDULES, SCREEN)
    assert slower.screened == [SCHEDULES[0], *SCHEDULES[4:]]
    # All are as on the machine that is three times as slow now, so that the search can compare them.
    for trial in trials:
        assert trial.seconds == pytest.approx(3 * synthetic_table()[trial.schedule].median_s)


def test_finals_are_measured_again(database: TuningDatabase) -> None:
    evaluation(database, Measurer())(SCHEDULES[:4], SCREEN)
    again = Measurer()
    evaluation(database, again)(SCHEDULES[:4], FINAL)
    assert again.asked == SCHEDULES[:4]


@pytest.mark.parametrize(
    "changes", [{"generator": "gen2"}, {"clocks": "powersave"}, {"mode": "on_device, cold caches"}]
)
def test_trials_of_another_provenance_are_measured_again(database: TuningDatabase, changes: dict[str, str]) -> None:
    evaluation(database, Measurer())(SCHEDULES, SCREEN)
    again = Measurer()
    evaluation(database, again, replace(PROVENANCE, **changes))(SCHEDULES, SCREEN)
    assert again.screened == SCHEDULES


def test_trials_of_another_host_are_measured_again(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.tuning.search.tuner.host_name", lambda: "elsewhere")
    evaluation(database, Measurer())(SCHEDULES, SCREEN)
    again = Measurer()
    evaluation(database, again)(SCHEDULES, SCREEN)
    assert again.screened == SCHEDULES


@pytest.mark.parametrize("outcome", ["timeout", "out_of_memory"])
def test_what_the_machine_may_be_to_blame_for_gets_another_chance(database: TuningDatabase, outcome: Outcome) -> None:
    table: dict[Schedule, Timing | Outcome] = {**synthetic_table(), SCHEDULES[1]: outcome, SCHEDULES[2]: "wrong"}
    evaluation(database, Measurer(table))(SCHEDULES, SCREEN)
    again = Measurer()
    trials = evaluation(database, again)(SCHEDULES, SCREEN)
    assert again.screened == [SCHEDULES[0], SCHEDULES[1]]
    assert [trial.outcome for trial in trials] == ["ok", "ok", "wrong", "ok", "ok", "ok"]


def test_where_nothing_ran_all_is_tried_again(database: TuningDatabase) -> None:
    evaluation(database, Measurer(dict.fromkeys(SCHEDULES, "crashed")))(SCHEDULES, SCREEN)
    again = Measurer()
    evaluation(database, again)(SCHEDULES, SCREEN)
    assert again.screened == SCHEDULES


def test_damaged_lines_are_measured_again(database: TuningDatabase) -> None:
    evaluation(database, Measurer())(SCHEDULES, SCREEN)
    (log,) = database.user.root.rglob("*.jsonl")
    lines = log.read_text().splitlines()
    lines[1] = lines[1].replace('"median_s": ', '"median_s": -')
    lines[2] = lines[2][:80]
    lines[3] = lines[3].replace('"outcome": "ok"', '"outcome": "fine"')
    log.write_text("\n".join(lines) + "\n")
    again = Measurer()
    evaluation(database, again)(SCHEDULES, SCREEN)
    assert again.screened == [SCHEDULES[0], *SCHEDULES[1:4]]


def test_a_tuning_that_ended_is_not_resumed(database: TuningDatabase) -> None:
    entry, result = tune_on_device(problem(), PROVENANCE, Measurer(), LIMITS, database)
    database.put(entry)
    again = Measurer()
    tune_on_device(problem(), PROVENANCE, again, LIMITS, database)
    assert set(again.screened) == {trial.schedule for trial in result.trials}


def test_the_conditions_asked_for_reach_the_case_and_the_winner(database: TuningDatabase) -> None:
    cases: list[Any] = []

    class Looking(Measurer):
        def measure(
            self, asked: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard
        ) -> list[Trial]:
            cases.extend(case for _, case in asked)
            return super().measure(asked, effort, done)

    cold = Conditions("cold", "stream")
    entry, _ = tune_on_device(problem(), PROVENANCE, Looking(), LIMITS, database, conditions=cold)
    assert {(case.workload.cache, case.workload.launch) for case in cases} == {("cold", "stream")}
    assert len({case.workload.key for case in cases}) == 1, "all cases of a problem share one workload"
    assert entry.provenance.mode == "on_device, cold caches, stream launches"


@pytest.mark.parametrize("after", [1, 5, 11])
def test_kill_9_loses_at_most_the_running_trial(database: TuningDatabase, after: int) -> None:
    with victim(database.user.root, 16, 1, "tests.unit.tuning.store.victim") as process:
        steps = told(process, after)
        process.send_signal(signal.SIGKILL)
        steps += told(process)
    shown = [Schedule.parse(step["schedule"]) for step in steps]
    kept = on_disk(database)
    assert kept[: len(shown)] == shown
    assert len(shown) <= len(kept) <= len(shown) + 1

    posed, again = problem(predict=misled_seconds), Measurer()
    entry, result = tune_on_device(posed, PROVENANCE, again, LIMITS, database)
    whole = tune_on_device(
        posed, PROVENANCE, Measurer(), LIMITS, TuningDatabase(database.user.root / "new", shipped=None)
    )
    assert (entry.schedule, [trial.schedule for trial in result.trials]) == (
        whole[0].schedule,
        [trial.schedule for trial in whole[1].trials],
    )
    assert entry.schedule == OPTIMUM
    fresh = [trial.schedule for trial in result.trials if trial.schedule not in kept]
    assert set(fresh) <= set(again.screened)
    # Beside what is new, only the best so far of each batch, which the new ones are compared with, was timed again.
    assert len(set(again.screened) - set(fresh)) <= 4
