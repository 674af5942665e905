"""Cost models: by name or as a function, many schedules at a time, and what a correction learns from trials."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tessera.errors import ArgumentError, CacheFormatError
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimates
from tessera.tuning.interfaces import DOUBT, TuningProblem
from tessera.tuning.model.learned import Learned
from tessera.tuning.model.ranking import favourite, ranked
from tessera.tuning.model.registry import COST_MODELS, cost_model, under
from tessera.tuning.model.ridge import LEAST_SHAPES, LEAST_TRIALS, MeasuredSchedule, fitted
from tessera.tuning.store.identity import Identity
from tests.unit.tuning.support import MATMUL, OPTIMUM, SPACE, problem, shaped, synthetic_seconds

SHAPES = [(256, 256, 256), (512, 512, 512), (1024, 64, 1024), (2048, 2048, 2048)]
CANDIDATES = list(SPACE.candidates())


def terms_of(schedule: Schedule) -> dict[str, float]:
    """What an analytical model says: the depth costs more arithmetic than it really does."""
    rows, columns = schedule.integers("tile")
    return {"FMA": 4e-4, "compute": 5e-4, "L2": 1e-3 / rows, "DRAM": 1e-2 / columns, "launch": 1e-6}


def posed(identity: Identity = MATMUL, family: str = "contraction") -> TuningProblem:
    """A problem whose estimates are the sum of `terms_of`."""

    def estimates(schedules: Sequence[Schedule]) -> Estimates:
        rows = [terms_of(schedule) for schedule in schedules]
        terms = {name: np.array([row[name] for row in rows]) for name in ("FMA", "compute", "L2", "DRAM", "launch")}
        seconds = terms["compute"] + terms["L2"] + terms["DRAM"] + terms["launch"]
        return Estimates(seconds, terms, {"compute": terms["compute"], "DRAM": terms["DRAM"]}, "a formula")

    return replace(problem(identity), estimated=estimates, family=family)


def measured(
    identity: Identity, seconds: Callable[[Schedule], float] = synthetic_seconds, every: int = 1
) -> list[MeasuredSchedule]:
    asked = posed(identity)
    schedules = CANDIDATES[::every]
    return [
        MeasuredSchedule(
            identity, "contraction", SPACE.default, schedule, found.seconds, found.terms, seconds(schedule)
        )
        for schedule, found in zip(schedules, asked.estimates(schedules), strict=True)
    ]


def samples() -> list[MeasuredSchedule]:
    return [sample for shape in SHAPES for sample in measured(shaped(*shape))]


def test_hardware_is_what_the_problem_estimates() -> None:
    asked = posed()
    assert cost_model("hardware").seconds(asked, CANDIDATES).tolist() == asked.estimates(CANDIDATES).seconds.tolist()


def test_roofline_is_the_slowest_resource_and_the_launch() -> None:
    narrow = Schedule(tile=(4, 16), kc=64, prefetch=False)
    assert cost_model("roofline").seconds(posed(), [narrow]).tolist() == pytest.approx([1e-2 / 16 + 1e-6])
    plain = problem()  # nothing is known but a prediction
    assert cost_model("roofline").seconds(plain, [OPTIMUM])[0] == synthetic_seconds(OPTIMUM)


def test_a_function_of_a_schedule_is_a_cost_model() -> None:
    tuned = under(posed(), lambda schedule: 1.0 / schedule.integer("kc"))
    assert ranked(SPACE, tuned.predict)[0][1].integer("kc") == max(each.integer("kc") for each in CANDIDATES)


def test_a_function_may_ask_for_the_estimate() -> None:
    def traffic(schedule: Schedule, estimate: object) -> float:
        return float(estimate.terms["DRAM"] + 0 * schedule.integer("kc"))  # type: ignore[attr-defined]

    model = cost_model(traffic)
    assert model.name == "traffic"
    assert model.seconds(posed(), CANDIDATES[:3]).tolist() == [terms_of(each)["DRAM"] for each in CANDIDATES[:3]]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), None, True, "fast"])
def test_a_function_that_gives_no_seconds_is_named(value: object) -> None:
    def broken(schedule: Schedule) -> object:
        return value

    with pytest.raises(ArgumentError, match="broken"):
        cost_model(broken).seconds(posed(), CANDIDATES)


@pytest.mark.parametrize("chosen", ["", "magic", 3, None])
def test_what_is_no_cost_model_is_refused_with_the_names(chosen: object) -> None:
    with pytest.raises(ArgumentError) as error:
        cost_model(chosen)
    assert all(name in error.value.hints[0] for name in COST_MODELS)


def test_under_changes_the_prediction_and_not_the_estimates() -> None:
    asked = posed()
    tuned = under(asked, "roofline")
    assert tuned.estimates([OPTIMUM])[0] == asked.estimates([OPTIMUM])[0]
    assert tuned.predict(OPTIMUM) == cost_model("roofline").seconds(asked, [OPTIMUM])[0]


def test_a_model_takes_the_place_of_the_one_before() -> None:
    plain = problem()  # without estimates: those are what it predicts
    again = under(under(plain, lambda schedule: 7.0), "hardware")
    assert again.predict(OPTIMUM) == plain.predict(OPTIMUM)


# -- what is learned --------------------------------------------------------------------------------------------------


def correlation(predicted: Sequence[float], truth: Sequence[float]) -> float:
    """Spearman's rank correlation; ties are as good as absent here."""
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, truth)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def test_a_correction_orders_the_schedules_of_a_shape_that_it_has_not_seen() -> None:
    unseen = shaped(640, 640, 640)
    truth = [synthetic_seconds(schedule) for schedule in CANDIDATES]
    model = Learned.fitted([*samples(), *measured(unseen)], excluding=lambda identity: identity == unseen)
    plain = posed(unseen).estimates(CANDIDATES).seconds.tolist()
    learned = model.seconds(posed(unseen), CANDIDATES).tolist()
    assert correlation(learned, truth) > max(0.9, correlation(plain, truth))
    assert str(unseen) not in next(iter(model.residuals.values())).shapes


def test_what_is_excluded_changes_nothing() -> None:
    lying = measured(shaped(640, 640, 640), seconds=lambda schedule: 1.0 / synthetic_seconds(schedule))
    honest = Learned.fitted(samples())
    also = Learned.fitted([*samples(), *lying], excluding=lambda identity: identity.shape == (640, 640, 640))
    assert also.to_json() == honest.to_json()


def test_a_clock_that_was_slow_for_one_shape_teaches_nothing_of_its_schedules() -> None:
    slow = [
        replace(each, measured_s=3 * each.measured_s) if each.identity.shape[0] == 256 else each for each in samples()
    ]
    plain, with_slow = fitted(samples()), fitted(slow)
    assert plain is not None
    assert with_slow is not None
    assert with_slow.weights.tolist() == pytest.approx(plain.weights.tolist(), abs=1e-9)
    assert with_slow.intercept > plain.intercept


def test_too_few_trials_or_shapes_teach_nothing() -> None:
    one = measured(shaped(*SHAPES[0])) * 4
    assert len(one) > LEAST_TRIALS
    assert fitted(one) is None
    few = [sample for shape in SHAPES for sample in measured(shaped(*shape), every=8)]
    assert len(few) < LEAST_TRIALS
    assert fitted(few) is None


def test_another_machine_or_family_is_predicted_by_the_analytical_model() -> None:
    model = Learned.fitted(samples())
    for asked in (posed(replace(MATMUL, arch="another")), posed(family="attention")):
        assert model.residual(asked) is None
        assert model.seconds(asked, CANDIDATES).tolist() == asked.estimates(CANDIDATES).seconds.tolist()


def test_own_trials_go_before_those_of_the_package() -> None:
    shipped = Learned.fitted(samples())
    elsewhere = [replace(sample, identity=replace(sample.identity, arch="another")) for sample in samples()]
    both = Learned.fitted(elsewhere).over(shipped)
    assert set(both.residuals) == {("another", "contraction"), (MATMUL.arch, "contraction")}


def test_a_correction_is_bounded_where_nothing_was_measured() -> None:
    model = Learned.fitted(samples())
    far = [OPTIMUM.replace(kc=1 << 40, tile=(1 << 30, 1 << 30))]
    residual = model.residual(posed())
    assert residual is not None
    factor = model.seconds(posed(), far)[0] / posed().estimates(far).seconds[0]
    assert 0.2 < factor / np.exp(residual.intercept) < 5.0


def test_coefficients_are_data_that_reads_back() -> None:
    model = Learned.fitted(samples())
    again = Learned.from_json(json.loads(json.dumps(model.to_json())), "test")
    before, after = (each.seconds(posed(), CANDIDATES).tolist() for each in (model, again))
    assert after == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize(
    "record", [[], {}, {"format": "tessera-residuals", "version": 9, "models": []},
               {"format": "tessera-residuals", "version": 1, "models": [{"arch": "a"}]},
               {"format": "tessera-residuals", "version": 1, "models": 3}],
)  # fmt: skip
def test_a_file_that_holds_no_coefficients_is_refused(record: object) -> None:
    with pytest.raises(CacheFormatError, match="test"):
        Learned.from_json(record, "test")


def test_what_is_shipped_can_be_read_and_says_what_it_was_fitted_to() -> None:
    for residual in Learned.shipped().residuals.values():
        assert residual.trials >= LEAST_TRIALS
        assert len(residual.shapes) >= LEAST_SHAPES
        assert residual.spread < residual.before


# -- the choice without a trial ---------------------------------------------------------------------------------------


def test_a_model_overrules_the_default_only_where_it_promises_more_than_it_errs_by() -> None:
    def estimates(gain: float) -> TuningProblem:
        def of(schedules: Sequence[Schedule]) -> Estimates:
            return Estimates(
                np.array([1.0 if each == SPACE.default else 1.0 / (1 + gain) for each in schedules]), {}, {}
            )

        return under(replace(problem(), estimated=of), "hardware")

    little, much = (estimates(gain) for gain in (0.5 * DOUBT, 2 * DOUBT))
    assert favourite(SPACE, little.predict) == (1.0, SPACE.default)
    assert favourite(SPACE, much.predict)[1] != SPACE.default


def test_a_users_model_is_taken_at_its_word() -> None:
    asked = under(problem(), lambda schedule: 1.0 if schedule == SPACE.default else 0.999)
    assert favourite(SPACE, asked.predict)[1] != SPACE.default
