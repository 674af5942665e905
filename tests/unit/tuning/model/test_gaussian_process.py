"""The model of the cost model's error: what a few trials say of schedules that were not tried."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.model.gaussian_process import Array, Encoding, FeatureColumns, GaussianProcess, expected_gain
from tests.unit.tuning.support import SPACE

ALL = list(SPACE.candidates())
ENCODING = Encoding(ALL)
COLUMNS = FeatureColumns(ENCODING.unordered)
ROWS = ENCODING.rows(ALL)


def error(schedule: Schedule) -> float:
    """A model that is twice too fast, and a quarter more so where nothing is prefetched."""
    return math.log(2.0) + (0.0 if schedule["prefetch"] else 0.25)


def fitted(schedules: list[Schedule]) -> GaussianProcess:
    errors = np.array([error(schedule) for schedule in schedules])
    return GaussianProcess(COLUMNS, ENCODING.rows(schedules), errors, np.full(len(schedules), 0.01))


def believed(model: GaussianProcess, schedule: Schedule) -> tuple[float, float]:
    belief = model.belief(ENCODING.rows([schedule]))
    return float(belief.mean[0]), float(belief.variance[0])


SOME = [
    Schedule(tile=(8, 16), kc=64, prefetch=False),
    Schedule(tile=(12, 32), kc=256, prefetch=False),
    Schedule(tile=(8, 32), kc=128, prefetch=True),
    Schedule(tile=(4, 16), kc=512, prefetch=True),
    Schedule(tile=(14, 32), kc=64, prefetch=True),
]


def test_encoding_has_a_column_for_what_varies_only() -> None:
    assert ENCODING.rows(ALL).shape == (len(ALL), 4), "rows and columns of the tile, kc, prefetch"
    assert COLUMNS.unordered.tolist() == [False, False, False, True]
    narrow = Encoding([schedule for schedule in ALL if schedule["kc"] == 64 and schedule["prefetch"]])
    assert narrow.rows(ALL[:1]).shape == (1, 2)


def test_a_knobs_effect_is_learnt_from_schedules_that_differ_in_all_else() -> None:
    unseen = Schedule(tile=(12, 32), kc=64, prefetch=False)
    without = believed(fitted(SOME), unseen)[0]
    with_ = believed(fitted(SOME), unseen.replace(prefetch=True))[0]
    assert without - with_ > 0.12
    assert with_ == pytest.approx(math.log(2.0), abs=0.1), "what the model errs by on all alike"


def test_what_was_measured_is_believed_and_the_rest_less() -> None:
    model = fitted(SOME)
    for schedule in SOME:
        mean, variance = believed(model, schedule)
        assert mean == pytest.approx(error(schedule), abs=0.03)
        assert variance < 0.02**2
    far = Schedule(tile=(4, 16), kc=1024, prefetch=False)
    assert believed(model, far)[1] > 4 * believed(model, SOME[0])[1]


def test_nothing_measured_is_no_error_expected_and_none_excluded() -> None:
    belief = GaussianProcess(COLUMNS, np.zeros((0, 4)), np.zeros(0), np.zeros(0)).belief(ROWS)
    assert not belief.mean.any()
    assert (belief.variance > 1.0).all()


def test_an_assumption_makes_what_is_alike_less_uncertain() -> None:
    belief = fitted(SOME).belief(ROWS)
    before, mean = belief.variance.copy(), belief.mean.copy()
    here = ALL.index(Schedule(tile=(8, 16), kc=1024, prefetch=True))
    belief.assume(here)
    assert belief.variance[here] < 0.02**2
    alike, unlike = ALL.index(ALL[here].replace(kc=512)), ALL.index(Schedule(tile=(12, 32), kc=64, prefetch=False))
    assert belief.variance[alike] / before[alike] < belief.variance[unlike] / before[unlike]
    assert (belief.variance <= before + 1e-12).all()
    assert (belief.mean == mean).all()


def test_assuming_and_observing_leave_the_same_uncertainty() -> None:
    model = fitted(SOME)
    belief = model.belief(ROWS)
    extra = ALL[7]
    belief.assume(7, noise=0.01)
    # The same kernel, so that nothing but the observation differs.
    rows = ENCODING.rows([*SOME, extra])
    covariance = model.kernel(rows, rows) + np.eye(len(rows)) * 0.01**2
    cross = model.kernel(rows, ROWS)
    wanted: Array = model.kernel.variance - (cross * np.linalg.solve(covariance, cross)).sum(axis=0)
    assert np.allclose(belief.variance, np.maximum(wanted, 1e-12), atol=1e-9)


@given(st.floats(-3, 3), st.floats(0.001, 2))
def test_expected_gain_is_never_negative_nor_less_than_the_gain_itself(ahead: float, deviation: float) -> None:
    gain = float(expected_gain(np.array([ahead]), np.array([deviation]))[0])
    more = float(expected_gain(np.array([ahead]), np.array([deviation * 1.5]))[0])
    assert gain >= max(ahead, 0.0) - 1e-12
    assert more >= gain - 1e-12, "uncertainty is a chance"


def test_expected_gain_is_the_mean_of_draws() -> None:
    draws = np.random.default_rng(0).normal(-0.05, 0.1, 200_000)
    (gain,) = expected_gain(np.array([-0.05]), np.array([0.1]))
    assert gain == pytest.approx(np.maximum(draws, 0).mean(), rel=0.02)
