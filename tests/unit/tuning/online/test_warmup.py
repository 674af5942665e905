from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.measurement import Done, Effort, Measurer, ReplayMeasurer, unheard
from tessera.tuning.measure.trial import Outcome, Timing, Trial
from tessera.tuning.online.slices import Slices
from tessera.tuning.online.ticket import Ticket, TuningWarning
from tessera.tuning.online.warmup import LEAST_CALLS, TRIALS, Prompted, Warmup, niceness_of
from tessera.tuning.store.database import TuningDatabase
from tests.unit.tuning.support import MATMUL, OPTIMUM, SPACE, misled_seconds, problem, shaped, synthetic_table

SECONDS = 120.0
"""No search of a recorded table takes longer."""


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "cache", shipped=None)


Made = list[Warmup]


@pytest.fixture
def made() -> Iterator[Made]:
    """Warm-ups that the test makes, all of which are stopped."""
    warmups: Made = []
    yield warmups
    for warmup in warmups:
        warmup.stop()


def warmup_of(made: Made, measurer: Measurer | None = None, share: float = 1.0) -> Warmup:
    replays = measurer or ReplayMeasurer(synthetic_table())
    # A program whose calls take a tenth of a second, as far as the clock knows.
    ticks = iter(range(10**9))
    slices = Slices(share, lambda: next(ticks) * 0.1, lambda: 0.0)
    made.append(Warmup(share, lambda before: Prompted(replays, before), slices=slices))
    return made[-1]


def note(warmup: Warmup, database: TuningDatabase, *shapes: tuple[int, ...]) -> list[Ticket]:
    """The tickets of a plan that launches kernels of these shapes."""
    with warmup.collecting() as tickets:
        for shape in shapes or (MATMUL.shape,):
            choose(warmup, problem(shaped(*shape), misled_seconds), database)
    return tickets


def choose(warmup: Warmup, wanted: TuningProblem, database: TuningDatabase) -> Config:
    """What a kernel of which nothing is known runs under."""
    return warmup.choose(wanted, database, Config(SPACE.default, wanted.identity, "default"))


def call_until_settled(warmup: Warmup, tickets: Sequence[Ticket]) -> None:
    """Calls a plan until one of its kernels is settled."""
    deadline = time.monotonic() + SECONDS
    while not warmup.between_calls(tickets):
        assert time.monotonic() < deadline


def test_calls_tune_the_kernels_of_their_plan(made: Made, database: TuningDatabase) -> None:
    adopted: list[Schedule] = []
    warmup = warmup_of(made)
    with warmup.collecting() as tickets:
        choose(warmup, replace(problem(predict=misled_seconds), adopt=adopted.append), database)
    (ticket,) = tickets
    assert ticket.state == "waiting"
    call_until_settled(warmup, tickets)
    found = database.lookup(MATMUL)
    assert found is not None
    assert found.entry.origin == "measured"
    assert adopted == [found.entry.schedule]
    (report,) = warmup.reports()
    assert (report.state, report.limit, report.best_s) == ("done", TRIALS, found.entry.measured_s)
    assert 0 < report.trials <= TRIALS
    assert report.calls == ticket.calls >= LEAST_CALLS
    assert str(MATMUL) in str(report)


def test_a_settled_kernel_is_not_noted_again(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    call_until_settled(warmup, note(warmup, database))
    assert note(warmup, database) == []


def test_looking_at_schedules_tunes_nothing(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    choose(warmup, problem(), database)
    assert warmup.reports() == ()


def test_plans_that_launch_the_same_kernel_share_its_ticket(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    first, second = note(warmup, database), note(warmup, database, MATMUL.shape, (8, 8, 8), (8, 8, 8))
    assert second[0] is first[0]
    assert len(second) == 2


def test_a_kernel_that_is_called_once_is_not_tuned(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    once, often = note(warmup, database, (8, 8, 8)), note(warmup, database)
    assert not warmup.between_calls(once)
    call_until_settled(warmup, often)
    assert once[0].state == "waiting"
    assert database.lookup(shaped(8, 8, 8)) is None


def test_waiting_tunes_all_that_was_noted(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made, share=0.01)
    tickets = note(warmup, database, MATMUL.shape, (8, 8, 8))
    assert warmup.wait(SECONDS)
    assert [ticket.state for ticket in tickets] == ["done", "done"]
    assert warmup.between_calls(tickets)
    assert warmup.wait(SECONDS)


def test_waiting_ends_at_its_limit(made: Made, database: TuningDatabase) -> None:
    release = threading.Event()

    class Slow(ReplayMeasurer):
        def measure(
            self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard
        ) -> list[Trial]:
            release.wait(SECONDS)
            return super().measure(cases, effort, done)

    warmup = warmup_of(made, Slow(synthetic_table()))
    note(warmup, database)
    assert not warmup.wait(0.01)
    release.set()
    assert warmup.wait(SECONDS)


def test_what_cannot_be_tuned_is_said_once_and_left(made: Made, database: TuningDatabase) -> None:
    table: dict[Schedule, Timing | Outcome] = dict.fromkeys(SPACE.candidates(), "crashed")
    warmup = warmup_of(made, ReplayMeasurer(table))
    tickets = note(warmup, database)
    call_until_settled(warmup, tickets)
    with pytest.warns(TuningWarning, match="ended as crashed"):
        warmup.warn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warmup.warn()
    assert tickets[0].state == "failed"
    assert "ended as crashed" in tickets[0].note
    assert note(warmup, database) == []
    assert database.lookup(MATMUL) is None
    assert database.trials(MATMUL)


def test_a_fault_of_tessera_ends_one_search_and_is_seen(
    made: Made, database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: seen.append(arguments.exc_value))

    class Broken(ReplayMeasurer):
        def measure(
            self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard
        ) -> list[Trial]:
            if not seen:
                raise ZeroDivisionError
            return super().measure(cases, effort, done)

    warmup = warmup_of(made, Broken(synthetic_table()))
    tickets = note(warmup, database)
    call_until_settled(warmup, tickets)
    assert tickets[0].state == "failed"
    deadline = time.monotonic() + SECONDS
    while not seen and time.monotonic() < deadline:  # the thread says so as it ends
        time.sleep(1e-3)
    assert isinstance(seen[0], ZeroDivisionError)
    others = note(warmup, database, (8, 8, 8))
    call_until_settled(warmup, others)
    assert others[0].state == "done"


def test_waiting_outlasts_a_fault_of_tessera(
    made: Made, database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    asked: list[int] = []

    class Broken(ReplayMeasurer):
        def measure(
            self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard
        ) -> list[Trial]:
            asked.append(len(cases))
            if len(asked) == 1:
                raise ZeroDivisionError
            return super().measure(cases, effort, done)

    warmup = warmup_of(made, Broken(synthetic_table()))
    tickets = note(warmup, database, MATMUL.shape, (8, 8, 8))
    assert warmup.wait(SECONDS)
    assert sorted(ticket.state for ticket in tickets) == ["done", "failed"]


def test_who_waits_shorter_slows_nobody_down(made: Made, database: TuningDatabase) -> None:
    release = threading.Event()

    class Slow(ReplayMeasurer):
        def measure(
            self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard
        ) -> list[Trial]:
            release.wait(SECONDS)
            return super().measure(cases, effort, done)

    warmup = warmup_of(made, Slow(synthetic_table()))
    note(warmup, database)
    outcome: list[bool] = []
    patient = threading.Thread(target=lambda: outcome.append(warmup.wait(SECONDS)))
    patient.start()
    assert not warmup.wait(0.05)
    release.set()
    patient.join(SECONDS)
    assert outcome == [True]


def test_stopping_leaves_nothing_behind(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    tickets = note(warmup, database)
    for _ in range(LEAST_CALLS):
        warmup.between_calls(tickets)
    warmup.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "tessera-warmup"]
    assert warmup.between_calls(tickets)
    assert note(warmup, database) == []
    assert warmup.wait(SECONDS)


def test_a_fork_runs_its_kernels_as_they_are(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    tickets = note(warmup, database)
    for _ in range(LEAST_CALLS):
        warmup.between_calls(tickets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        as_they_are = warmup.between_calls(tickets) and note(warmup, database) == [] and warmup.wait(SECONDS)
        warmup.stop()
        os._exit(0 if as_they_are else 1)
    assert os.waitpid(child, 0)[1] == 0
    call_until_settled(warmup, tickets)
    assert tickets[0].state == "done"


def test_threads_that_call_at_once_tune_once(made: Made, database: TuningDatabase) -> None:
    measurer = ReplayMeasurer(synthetic_table())
    warmup = warmup_of(made, measurer)
    tickets = note(warmup, database)
    threads = [threading.Thread(target=call_until_settled, args=(warmup, tickets)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert tickets[0].state == "done"
    logged = {str(Schedule.from_json(record["schedule"])) for record in database.trials(MATMUL)}
    assert len(logged) == warmup.reports()[0].trials


def test_the_winner_is_the_fastest_of_those_tried(made: Made, database: TuningDatabase) -> None:
    warmup = warmup_of(made)
    with warmup.collecting() as tickets:
        choose(warmup, problem(), database)
    call_until_settled(warmup, tickets)
    found = database.lookup(MATMUL)
    assert found is not None
    assert found.entry.schedule == OPTIMUM


@pytest.mark.parametrize(("share", "niceness"), [(1.0, 1), (0.5, 1), (0.1, 10), (0.05, 13), (0.001, 19)])
def test_a_small_share_means_a_low_priority(share: float, niceness: int) -> None:
    assert niceness_of(share) == niceness
