"""fp64 functions against mpmath, and their special cases against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp, mpf

from tests.unit.backend.llvm.vecmath.accuracy import SPECIAL, agree_outside_range
from tests.unit.backend.llvm.vecmath.harness import native

FUNCTIONS = ("cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "sin", "sqrt", "tanh")
PRECISE = {name: getattr(mp, name) for name in FUNCTIONS if name != "exp2"} | {"exp2": lambda x: mpf(2) ** x}


def _arguments(function: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    generator = np.random.default_rng(3)
    if function in ("log", "sqrt", "log1p"):
        spread = np.exp2(generator.uniform(-1074, 1023, 400))
        return np.concatenate([spread, generator.uniform(0.5, 2.0, 400)])
    return np.concatenate([generator.uniform(-5, 5, 400), generator.uniform(-700, 700, 300), [1e-300, -1e-20, 3e-9]])


@pytest.mark.parametrize(("lanes", "avx512"), [(8, True), (4, False), (1, False)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_error_is_at_most_two_ulp(function: str, lanes: int, avx512: bool) -> None:
    x = _arguments(function)
    got = native(function, 1, lanes, "f64", avx512)(x)
    with mp.workdps(40):
        errors = [
            abs(mpf(float(value)) - PRECISE[function](mpf(float(at)))) / mpf(float(np.spacing(abs(value))))
            for at, value in zip(x, got, strict=True)
        ]
    assert max(errors) <= 2


@pytest.mark.parametrize(("lanes", "avx512"), [(8, True), (4, False), (1, False)])
def test_exp_loses_little_more_than_its_rounding(lanes: int, avx512: bool) -> None:
    x = np.random.default_rng(5).uniform(-5, 5, 1500)
    got = native("exp", 1, lanes, "f64", avx512)(x)
    with mp.workdps(40):
        errors = [
            abs(mpf(float(value)) - mp.exp(mpf(float(at)))) / mpf(float(np.spacing(value)))
            for at, value in zip(x, got, strict=True)
        ]
    assert max(errors) <= 0.65


@pytest.mark.parametrize("function", ["exp", "exp2", "expm1", "log", "log1p", "sqrt", "tanh"])
def test_special_cases_are_numpys(function: str) -> None:
    x = np.array([*SPECIAL, 709.9, -746.0, -745.0, 5e-324, -2.0, 1e308])
    got = native(function, 1, 8, "f64")(x)
    with np.errstate(all="ignore"):
        expected = getattr(np, function)(x)
    assert agree_outside_range(got, expected)
    assert np.allclose(got, expected, rtol=1e-15, atol=0, equal_nan=True)


def test_exp_underflows_gradually() -> None:
    x = np.linspace(-745.1, -708.5, 500)
    for lanes, avx512 in ((8, True), (4, False)):
        got = native("exp", 1, lanes, "f64", avx512)(x)
        assert np.all(np.abs(got - np.exp(x)) <= np.maximum(np.spacing(np.exp(x)), 5e-324))
        assert np.all(got > 0)


def test_pow_is_libms() -> None:
    base, exponent = np.array([2.0, -8.0, -8.0, np.nan, 0.0]), np.array([0.5, 3.0, 0.5, 0.0, -1.0])
    got = native("powf", 2, 4, "f64")(base, exponent)
    assert np.array_equal(got, [np.sqrt(2.0), -512.0, np.nan, 1.0, np.inf], equal_nan=True)
