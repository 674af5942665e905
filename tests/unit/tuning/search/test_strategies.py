"""Strategies behind their protocol: the shipped ones on synthetic tables, and users' own."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import ArgumentError, ScheduleError
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.system.distribution import installing
from tessera.tuning.interfaces import TuningSpace
from tessera.tuning.measure.measurement import ReplayMeasurer
from tessera.tuning.measure.trial import Outcome, Timing, Trial
from tessera.tuning.model.outlook import kept
from tessera.tuning.model.ranking import Predict, ranked
from tessera.tuning.search.baselines import RandomSearch, RankedEnumeration
from tessera.tuning.search.guided import TRUSTED, GuidedSearch
from tessera.tuning.search.search import SearchLimits, SearchResult, search
from tessera.tuning.search.strategy import StrategyFor, StrategyName, strategy_for
from tests.unit.tuning.support import OPTIMUM, SPACE, misled_seconds, synthetic_seconds, synthetic_table, timing

DIGITS = tuple(Knob(f"k{i}", (1, 2, 4, 8, 16, 32, 64, 128), "a size") for i in range(7))
LARGE: Space[None] = Space(
    DIGITS,
    (
        Rule(
            "not_too_large",
            "for the test",
            lambda s, problem: sum(s.integer(knob.name).bit_length() for knob in DIGITS) < 40,
        ),
    ),
    None,
    Schedule({knob.name: 1 for knob in DIGITS}),
)
"""Two million combinations: of these a search knows a part."""


def large_seconds(schedule: Schedule) -> float:
    """A bowl around 2, 4, 8, ..., deeper along some knobs than along others."""
    sizes = [schedule.integer(knob.name).bit_length() - 1 for knob in DIGITS]
    return 1e-3 * (1 + sum(0.02 * (i + 1) * (size - 1 - i % 5) ** 2 for i, size in enumerate(sizes)))


def large_guess(schedule: Schedule) -> float:
    """A cost model of `large_seconds` that is wrong about two of seven knobs, and twice too fast."""
    return 0.5 * large_seconds(schedule.replace(k2=4, k5=2))


def run(
    strategy: StrategyName | StrategyFor,
    seconds: Callable[[Schedule], float] = synthetic_seconds,
    predict: Predict = misled_seconds,
    space: TuningSpace = SPACE,
    noise: float = 0.002,
    **limits: int,
) -> SearchResult:
    def evaluate(schedules: Sequence[Schedule], effort: object) -> list[Trial]:
        return [Trial(schedule, "ok", timing(seconds(schedule), noise)) for schedule in schedules]

    return search(space, predict, evaluate, SearchLimits(**limits), clock=lambda: 0.0, strategy=strategy)


@pytest.mark.parametrize("strategy", ["guided", "ranking", "random"])
def test_every_strategy_keeps_to_the_limit_and_measures_nothing_twice(strategy: StrategyName) -> None:
    result = run(strategy, max_trials=10)
    schedules = [trial.schedule for trial in result.trials]
    assert len(schedules) == len(set(schedules)) <= 10
    assert SPACE.default in schedules
    assert result.best.seconds == pytest.approx(min(trial.seconds for trial in result.trials), rel=0.01)


def test_ranking_proposes_the_favourites_in_order() -> None:
    order = [schedule for _, schedule in ranked(SPACE, synthetic_seconds) if schedule != SPACE.default]
    strategy = RankedEnumeration(SPACE, synthetic_seconds)
    assert [*strategy.propose(3), *strategy.propose(2)] == order[:5]


def test_random_search_draws_all_there_is_once() -> None:
    strategy = RandomSearch(SPACE, synthetic_seconds)
    drawn: list[Schedule] = []
    while batch := strategy.propose(8):
        drawn += batch
    everything = set(SPACE.candidates()) - {SPACE.default}
    assert len(drawn) == len(set(drawn)) >= 0.9 * len(everything)
    assert set(drawn) <= everything
    assert RandomSearch(SPACE, synthetic_seconds).propose(4) == drawn[:4], "the seed decides"


def test_guided_search_begins_with_favourites_and_what_is_unlike_them() -> None:
    order = [schedule for _, schedule in ranked(SPACE, synthetic_seconds)]
    batch = GuidedSearch(SPACE, synthetic_seconds).propose(6)
    assert batch[0] == order[0]
    assert max(order.index(schedule) for schedule in batch) >= len(batch), "not the first six only"
    assert len({schedule["tile"] for schedule in batch}) > 1
    assert len({schedule["kc"] for schedule in batch}) > 1


def test_what_the_model_prunes_is_not_among_the_first_trials() -> None:
    order = [schedule for _, schedule in ranked(SPACE, misled_seconds)]
    pruned = set(order[kept(len(order)) :])
    tried = [trial.schedule for trial in run("guided", max_trials=40).trials if trial.schedule != SPACE.default]
    assert not pruned & set(tried[: TRUSTED - 1])
    assert pruned & set(tried), "once trials have told how much the model errs, nothing is excluded"


def test_guided_search_learns_what_the_model_errs_by() -> None:
    strategy = GuidedSearch(SPACE, misled_seconds)
    strategy.observe([Trial(SPACE.default, "ok", timing(synthetic_seconds(SPACE.default)))])
    for _ in range(2):
        batch = strategy.propose(4)
        strategy.observe([Trial(schedule, "ok", timing(synthetic_seconds(schedule))) for schedule in batch])
    late = strategy.propose(4)
    model = [schedule for _, schedule in ranked(SPACE, misled_seconds)]
    typical = sum(synthetic_seconds(schedule) for schedule in model) / len(model)
    assert all(synthetic_seconds(schedule) < typical for schedule in late)


@pytest.mark.parametrize(("trials", "share"), [(8, 0.8), (16, 0.9), (32, 0.97)])
def test_guided_search_reaches_the_best_of_a_large_space(trials: int, share: float) -> None:
    best = 1e-3
    result = run("guided", large_seconds, large_guess, LARGE, max_trials=trials)
    plain = run("ranking", large_seconds, large_guess, LARGE, max_trials=trials)
    assert best / result.best.seconds >= share
    assert trials < 16 or result.best.seconds < plain.best.seconds, "whose error the ranking repeats"


def test_a_model_without_any_opinion_is_no_obstacle() -> None:
    result = run("guided", predict=lambda schedule: 1.0, max_trials=24)
    assert result.best.schedule == OPTIMUM


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_trials_do_not_depend_on_anything_but_what_was_measured(generator: random.Random) -> None:
    jitter = {schedule: generator.uniform(0.7, 1.4) for schedule in SPACE.candidates()}
    first, second = (
        run("guided", lambda schedule: synthetic_seconds(schedule) * jitter[schedule], max_trials=9) for _ in range(2)
    )
    assert [trial.schedule for trial in first.trials] == [trial.schedule for trial in second.trials]


def test_search_ends_where_the_expected_gain_is_below_the_noise() -> None:
    exact = run("guided", noise=0.002)
    noisy = run("guided", noise=0.2)
    assert "below the noise" in exact.reason
    assert "below the noise" in noisy.reason
    assert len(noisy.trials) < len(exact.trials) < 48


def test_what_resembles_a_failure_is_tried_late() -> None:
    def evaluate(schedules: Sequence[Schedule], effort: object) -> list[Trial]:
        return [
            Trial(schedule, "crashed")
            if schedule["tile"] == (12, 32)
            else Trial(schedule, "ok", timing(synthetic_seconds(schedule)))
            for schedule in schedules
        ]

    result = search(SPACE, synthetic_seconds, evaluate, SearchLimits(max_trials=16), clock=lambda: 0.0)
    assert result.best.schedule["tile"] != (12, 32)
    crashed = sum(trial.outcome == "crashed" for trial in result.trials)
    assert crashed <= 6, "of ten schedules with this tile"


class Countdown:
    """A strategy of a user: the space from its end; notes what it is told."""

    told: list[Trial]

    def __init__(self, space: TuningSpace, predict: Predict) -> None:
        self.left = list(space.candidates())
        self.told = []
        Countdown.last = self

    last: Countdown

    def propose(self, count: int) -> Sequence[Schedule]:
        return [self.left.pop() for _ in range(min(count, 3, len(self.left)))]

    def observe(self, trials: Sequence[Trial]) -> None:
        self.told += trials


def test_a_users_own_strategy_is_a_class_with_two_methods() -> None:
    result = run(Countdown, max_trials=7)
    told = Countdown.last.told
    assert [trial.schedule for trial in told] == [trial.schedule for trial in result.trials]
    assert told[0].schedule == SPACE.default
    assert {trial.schedule for trial in told[1:]} < set(SPACE.candidates())


def test_a_strategy_that_proposes_nothing_ends_the_search() -> None:
    class Idle(Countdown):
        def propose(self, count: int) -> Sequence[Schedule]:
            return []

    result = run(Idle)
    assert [trial.schedule for trial in result.trials] == [SPACE.default]
    assert result.reason == "the strategy proposes nothing more"


@pytest.mark.parametrize(
    ("proposal", "said"),
    [(SPACE.default.replace(tile=(14, 32), kc=1024), "rule panel_fits"), (Schedule(kc=64), "the knobs are tile, kc")],
)
def test_a_strategy_that_proposes_what_is_not_legal_is_refused(proposal: Schedule, said: str) -> None:
    class Wrong(Countdown):
        def propose(self, count: int) -> Sequence[Schedule]:
            return [proposal]

    with pytest.raises(ScheduleError, match="not legal here") as caught:
        run(Wrong)
    assert said in str(caught.value)


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ArgumentError, match="'annealing'"):
        strategy_for("annealing")  # type: ignore[arg-type]


def test_without_optuna_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ArgumentError, match="Optuna is not installed") as caught:
        run("optuna")
    assert installing("optuna") in str(caught.value)


def test_optuna_finds_the_best_of_a_small_space() -> None:
    pytest.importorskip("optuna", reason="an extra of its own")
    result = run("optuna", predict=synthetic_seconds, max_trials=12)
    assert result.best.schedule == OPTIMUM
    assert 8 <= len(result.trials) <= 12
    failing: Mapping[Schedule, Timing | Outcome] = synthetic_table() | {OPTIMUM: "crashed"}
    measurer = ReplayMeasurer(failing)

    def evaluate(schedules: Sequence[Schedule], effort: Any) -> list[Trial]:
        return measurer.measure([(schedule, None) for schedule in schedules], effort)

    survived = search(SPACE, synthetic_seconds, evaluate, SearchLimits(max_trials=12), strategy="optuna")
    assert survived.best.schedule != OPTIMUM
