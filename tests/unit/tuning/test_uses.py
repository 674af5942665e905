"""Tuning what a run used: hottest first, within one budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import TuneFailedError
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.uses import LEAST_S, Usage, Use, tune_uses
from tests.unit.tuning.support import OPTIMUM, problem, shaped


def use(seconds: float, m: int = 64) -> Use:
    return Use(f"kernel {m}", problem(shaped(m, 64, 64)), seconds, 3)


class Tuner:
    """Takes what it is given of the budget, or `takes` seconds, on a clock of its own."""

    def __init__(self, takes: float | None = None) -> None:
        self.now, self.takes = 0.0, takes
        self.asked: list[tuple[int, float]] = []

    def solve(self, problem: TuningProblem, budget_s: float) -> Config:
        self.asked.append((problem.identity.shape[0], budget_s))
        self.now += budget_s if self.takes is None else self.takes
        return Config(OPTIMUM, problem.identity, "measured")


def test_the_hottest_comes_first_and_gets_its_share() -> None:
    tuner = Tuner()
    tuned = list(tune_uses([use(1.0, 1), use(6.0, 6), use(3.0, 3)], tuner.solve, 100.0, lambda: tuner.now))
    assert [each.use.seconds for each in tuned] == [6.0, 3.0, 1.0]
    assert tuner.asked == [(6, 60.0), (3, 30.0), (1, 10.0)]


def test_what_one_does_not_need_goes_to_the_next() -> None:
    tuner = Tuner(takes=1.0)
    list(tune_uses([use(3.0, 3), use(1.0, 1)], tuner.solve, 40.0, lambda: tuner.now))
    assert tuner.asked == [(3, 30.0), (1, 39.0)]


def test_what_the_budget_does_not_reach_is_named() -> None:
    tuner = Tuner(takes=7.0)
    reached, missed = tune_uses([use(3.0, 3), use(1.0, 1)], tuner.solve, 5.0, lambda: tuner.now)
    assert reached.config is not None
    assert missed.config is None
    assert missed.reason == "the budget of 5 s was spent before"


def test_a_kernel_that_cannot_be_tuned_stops_nothing() -> None:
    def solve(problem: TuningProblem, budget_s: float) -> Config:
        if problem.identity.shape[0] == 3:
            raise TuneFailedError("all candidates failed")
        return Config(OPTIMUM, problem.identity, "measured")

    failed, right = tune_uses([use(3.0, 3), use(1.0, 1)], solve, 5.0)
    assert (failed.config, failed.reason) == (None, "all candidates failed")
    assert right.config is not None


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8), st.floats(0.5, 100))
def test_a_budget_is_never_overdrawn(times: list[float], budget_s: float) -> None:
    tuner = Tuner()
    uses = [use(seconds, number + 1) for number, seconds in enumerate(times)]
    tuned = list(tune_uses(uses, tuner.solve, budget_s, lambda: tuner.now))
    assert len(tuned) == len(uses)
    assert sum(seconds for _, seconds in tuner.asked) <= budget_s * (1 + 1e-9)
    assert all(seconds >= min(LEAST_S, budget_s) * (1 - 1e-9) for _, seconds in tuner.asked[:-1])


def test_the_time_of_a_run_counts_what_cannot_be_tuned() -> None:
    assert Usage((use(1.0), use(2.0)), {"calls of libraries": 0.5}).seconds == 3.5
