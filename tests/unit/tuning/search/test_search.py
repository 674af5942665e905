"""Search on synthetic tables: times come from formulas in `support`, no machine is involved."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from tessera.errors import TuneFailedError, TuneSpaceEmptyError
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import FINAL, Effort, ReplayMeasurer
from tessera.tuning.measure.trial import Outcome, Timing, Trial
from tessera.tuning.model.ranking import COMBINED, ENUMERATED, ranked
from tessera.tuning.search.guided import GuidedSearch
from tessera.tuning.search.search import Evaluate, SearchLimits, SearchResult, search
from tests.unit.tuning.support import OPTIMUM, SPACE, misled_seconds, synthetic_seconds, synthetic_table, timing


def replay(table: Mapping[Schedule, Timing | Outcome]) -> Evaluate:
    measurer = ReplayMeasurer(table)
    return lambda schedules, effort: measurer.measure([(schedule, None) for schedule in schedules], effort)


def run(
    table: Mapping[Schedule, Timing | Outcome] | None = None,
    predict: Callable[[Schedule], float] = synthetic_seconds,
    **limits: float,
) -> SearchResult:
    evaluate = replay(table if table is not None else synthetic_table())
    return search(SPACE, predict, evaluate, SearchLimits(**limits), clock=lambda: 0.0)  # type: ignore[arg-type]


def test_ranking_is_by_prediction_and_legal() -> None:
    order = ranked(SPACE, synthetic_seconds)
    assert order[0] == (synthetic_seconds(OPTIMUM), OPTIMUM)
    assert [seconds for seconds, _ in order] == sorted(seconds for seconds, _ in order)
    assert {schedule for _, schedule in order} == set(SPACE.candidates())


def test_ties_of_the_model_are_ranked_in_the_order_of_the_choices() -> None:
    order = [schedule for _, schedule in ranked(SPACE, lambda _: 1.0)]
    assert order == list(SPACE.candidates())


def test_large_space_is_searched_by_the_model() -> None:
    knobs = tuple(Knob(f"k{i}", tuple(range(8)), "a digit") for i in range(6))
    space = Space(knobs, (), None, Schedule({knob.name: 0 for knob in knobs}))
    asked: set[Schedule] = set()

    def predict(schedule: Schedule) -> float:
        asked.add(schedule)
        return 1.0 + sum((schedule.integer(f"k{i}") - i) ** 2 for i in range(6))

    best = ranked(space, predict)[0][1]
    assert best == Schedule({f"k{i}": i for i in range(6)})
    assert len(asked) < ENUMERATED


def test_a_space_of_many_combinations_is_not_walked() -> None:
    knobs = tuple(Knob(f"k{i}", tuple(range(8)), "a digit") for i in range(6))
    judged: set[Schedule] = set()

    def late(schedule: Schedule, problem: None) -> bool:
        judged.add(schedule)
        return schedule.integer("k0") == 7  # a walk would meet seven eighths of all before the first legal one

    default = Schedule({knob.name: 7 for knob in knobs})
    space: Space[None] = Space(knobs, (Rule("late", "for the test", late),), None, default)
    best = ranked(space, lambda schedule: 1.0 + sum(schedule.integer(f"k{i}") for i in range(1, 6)))[0][1]
    assert best == Schedule({knob.name: 7 if knob.name == "k0" else 0 for knob in knobs})
    assert len(judged) < COMBINED < space.size


def test_empty_space_says_which_rule_empties_it() -> None:
    never: Rule[None] = Rule("never", "for the test", lambda schedule, problem: False)
    with pytest.raises(TuneSpaceEmptyError, match="never rejects 2 of 2"):
        ranked(Space((Knob("a", (1, 2), ""),), (never,), None, Schedule(a=1)), synthetic_seconds)


def test_good_model_finds_the_best_in_few_trials() -> None:
    result = run()
    assert result.best.schedule == OPTIMUM
    assert len(result.trials) <= 24


def test_misled_model_still_finds_the_best_by_climbing() -> None:
    result = run(predict=misled_seconds, max_trials=40)
    assert result.best.schedule == OPTIMUM


def test_climbing_beats_ranking_alone() -> None:
    order = [schedule for _, schedule in ranked(SPACE, misled_seconds)]
    result = run(predict=misled_seconds, max_trials=16)
    assert order.index(OPTIMUM) > 16, "ranking alone would not have met it"
    assert result.best.schedule == OPTIMUM


@pytest.mark.parametrize("limit", [1, 2, 7, 13])
def test_trials_are_limited_and_the_reason_named(limit: int) -> None:
    result = run(predict=misled_seconds, max_trials=limit)
    assert len(result.trials) == limit
    assert str(limit) in result.reason
    assert result.best.seconds == pytest.approx(min(trial.seconds for trial in result.trials), rel=0.01)


def test_budget_ends_the_search() -> None:
    ticks: Iterator[int] = iter(range(10**6))
    limits = SearchLimits(budget_s=3.0)
    result = search(SPACE, misled_seconds, replay(synthetic_table()), limits, clock=lambda: next(ticks))
    assert "3 s" in result.reason
    assert len(result.trials) < 40


def test_a_short_budget_measures_the_default_alone_first() -> None:
    asked: list[int] = []
    measure = replay(synthetic_table())

    def evaluate(schedules: Sequence[Schedule], effort: Effort) -> Sequence[Trial]:
        asked.append(len(schedules))
        return measure(schedules, effort)

    limits = SearchLimits(budget_s=0.2)
    result = search(SPACE, synthetic_seconds, evaluate, limits, clock=lambda: 0.5 * len(asked))
    assert asked == [1]
    assert result.best.schedule == SPACE.default
    assert result.reason == "the budget of 0.2 s was spent"


def test_model_that_promises_no_gain_ends_enumeration() -> None:
    exact = run(climbs=0, batch=2, max_trials=40)
    misled = run(predict=misled_seconds, climbs=0, batch=2, max_trials=40)
    assert len(exact.trials) < len(misled.trials), "what an exact model ranks much lower needs no trial"
    assert all(trial.predicted_s < 1.4e-3 for trial in exact.trials[1:] if trial.predicted_s is not None)


def test_knob_without_effect_does_not_crowd_out_the_others() -> None:
    result = run(predict=lambda schedule: synthetic_seconds(schedule.replace(prefetch=True)), climbs=0, max_trials=8)
    model = [trial.schedule.replace(prefetch=True) for trial in result.trials[1:]]
    assert len(set(model)) == len(model)


def test_two_tunings_agree_within_noise() -> None:
    winners = set()
    for seed in range(12):
        generator = random.Random(seed)
        jitter = {schedule: generator.uniform(0.998, 1.002) for schedule in SPACE.candidates()}
        table = {schedule: timing(synthetic_seconds(schedule) * jitter[schedule]) for schedule in jitter}
        near = OPTIMUM.replace(kc=512)
        table[near] = timing(1e-3 * jitter[near])
        winners.add(run(table).best.schedule)
    assert winners == {OPTIMUM}


def test_failures_are_trials_and_never_win() -> None:
    table: dict[Schedule, Timing | Outcome] = dict(synthetic_table())
    bad: tuple[Outcome, ...] = ("crashed", "timeout", "wrong", "compile_error", "out_of_memory")
    leaders = GuidedSearch(SPACE, synthetic_seconds).propose(5)
    table |= dict(zip(leaders, bad, strict=True))
    result = run(table)
    assert {trial.outcome for trial in result.trials} == {"ok", *bad}
    assert result.best.schedule not in leaders
    assert result.best.timing is not None


def test_default_that_fails_does_not_stop_the_search() -> None:
    table: dict[Schedule, Timing | Outcome] = dict(synthetic_table())
    table[SPACE.default] = "crashed"
    assert run(table).best.schedule == OPTIMUM


def test_nothing_that_runs_is_an_error_that_counts_outcomes() -> None:
    with pytest.raises(TuneFailedError, match="ended as crashed"):
        run(dict.fromkeys(SPACE.candidates(), "crashed"))


def test_machine_that_slows_down_meanwhile_misleads_nobody() -> None:
    table = synthetic_table()
    calls = 0

    def evaluate(schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
        nonlocal calls
        calls += 1
        return [Trial(schedule, "ok", table[schedule].scaled(1.2**calls)) for schedule in schedules]

    result = search(SPACE, misled_seconds, evaluate, SearchLimits(max_trials=40), clock=lambda: 0.0)
    assert result.best.schedule == OPTIMUM


def test_an_anchor_that_was_disturbed_once_does_not_make_all_others_fast() -> None:
    table = synthetic_table()
    disturbed: list[Schedule] = []

    def evaluate(schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
        trials = [Trial(schedule, "ok", table[schedule]) for schedule in schedules]
        if disturbed:  # the anchor comes first: most of its samples are late, one is not
            median = table[schedules[0]].median_s
            trials[0] = Trial(schedules[0], "ok", Timing(2 * median, median, 3 * median, 5, 5))
        disturbed.append(schedules[0])
        return trials

    result = search(SPACE, misled_seconds, evaluate, SearchLimits(max_trials=24), clock=lambda: 0.0, stop=lambda: "")
    times = {trial.schedule: trial.seconds for trial in result.trials if trial.schedule not in disturbed}
    assert len(times) > 8
    assert all(seconds == table[schedule].median_s for schedule, seconds in times.items())


def test_leader_that_fails_in_the_finals_loses() -> None:
    table = synthetic_table()

    def evaluate(schedules: Sequence[Schedule], effort: Effort) -> list[Trial]:
        return [
            Trial(schedule, "crashed")
            if effort is FINAL and schedule == OPTIMUM
            else Trial(schedule, "ok", table[schedule])
            for schedule in schedules
        ]

    near = OPTIMUM.replace(prefetch=False)
    table[near] = timing(1.01e-3)
    result = search(SPACE, synthetic_seconds, evaluate, SearchLimits(), clock=lambda: 0.0)
    assert result.best.schedule == near


def test_default_stays_where_the_best_does_not_beat_its_noise() -> None:
    table: dict[Schedule, Timing | Outcome] = {schedule: timing(2e-3) for schedule in SPACE.candidates()}
    table[SPACE.default] = timing(1.1e-3, noise=0.1)
    table[OPTIMUM] = timing(1.0e-3, noise=0.03)
    assert run(table).best.schedule == SPACE.default
    table[SPACE.default] = timing(1.1e-3, noise=0.03)
    assert run(table).best.schedule == OPTIMUM


def test_noise_that_hides_everything_is_said_and_the_default_stays() -> None:
    table: dict[Schedule, Timing | Outcome] = {
        schedule: timing(synthetic_seconds(schedule), noise=0.4) for schedule in SPACE.candidates()
    }
    result = run(table)
    assert result.best.schedule == SPACE.default
    assert "nothing could be told apart" in result.doubt
    assert "40%" in result.doubt
    assert str(OPTIMUM) in result.note
    assert run().doubt == ""


def test_noise_that_hides_some_differences_is_no_reason_to_say_nothing_is_told() -> None:
    table: dict[Schedule, Timing | Outcome] = {schedule: timing(2e-3) for schedule in SPACE.candidates()}
    table[SPACE.default] = timing(1.2e-3, noise=0.15)
    table[OPTIMUM] = timing(1.15e-3, noise=0.15)
    table[OPTIMUM.replace(kc=512)] = timing(1.18e-3, noise=0.002)
    result = run(table)
    assert result.best.schedule == SPACE.default
    assert str(OPTIMUM) in result.doubt


def test_default_meets_the_leaders_in_the_finals() -> None:
    table = synthetic_table()
    table[SPACE.default] = timing(synthetic_seconds(OPTIMUM) * 1.2)
    asked: list[tuple[Effort, Sequence[Schedule]]] = []
    measured = replay(table)

    def evaluate(schedules: Sequence[Schedule], effort: Effort) -> Sequence[Trial]:
        asked.append((effort, schedules))
        return measured(schedules, effort)

    search(SPACE, synthetic_seconds, evaluate, clock=lambda: 0.0)
    assert any(effort is FINAL and SPACE.default in schedules for effort, schedules in asked)


def test_trials_carry_the_prediction() -> None:
    assert all(trial.predicted_s == synthetic_seconds(trial.schedule) for trial in run().trials)


def test_interval_narrows_with_samples() -> None:
    generator = random.Random(0)
    samples = [1.0 + generator.random() * 0.1 for _ in range(100)]
    few, many = Timing.of(samples[:5]), Timing.of(samples)
    assert many.low_s <= many.median_s <= many.high_s
    assert many.noise < few.noise


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(1)
    draws = [Timing.of([generator.expovariate(1.0) for _ in range(41)]) for _ in range(600)]
    covered = sum(draw.low_s <= 0.6931 <= draw.high_s for draw in draws)
    assert covered / 600 > 0.93


def test_without_an_end_of_time_trials_end_the_search() -> None:
    ticks: Iterator[int] = iter(range(10**6))
    limits = SearchLimits(max_trials=6, budget_s=float("inf"))
    result = search(SPACE, misled_seconds, replay(synthetic_table()), limits, clock=lambda: next(ticks))
    assert len(result.trials) == 6
