"""sin and cos in fp32: the error bound over small, large and nearly-a-multiple arguments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from mpmath import mp, mpf

from tessera.backend.llvm.vecmath import REACH
from tests.unit.backend.llvm.vecmath.accuracy import (
    agree_outside_range,
    every_exponent,
    largest_error_ulp,
    neighbourhood,
)
from tests.unit.backend.llvm.vecmath.harness import native

WIDTHS = pytest.mark.parametrize(
    ("lanes", "avx512"), [(16, True), (8, False), (1, False)], ids=["avx512", "avx2", "scalar"]
)
FUNCTIONS = pytest.mark.parametrize("function", ["sin", "cos"])
BOUND = 0.505


def _near_multiples() -> npt.NDArray[np.float32]:
    """fp32 numbers around multiples of pi/2, where most of the argument cancels."""
    turns = np.concatenate([np.arange(1, 4000), np.geomspace(4e3, 6e11, 3000).round()])
    return neighbourhood(list(turns * (np.pi / 2)), width=2)


@WIDTHS
@FUNCTIONS
def test_error_is_bounded_up_to_2_to_the_40(function: str, lanes: int, avx512: bool) -> None:
    worst = neighbourhood([23.615097045898438, 0.052804332226514816], width=200)
    x = np.concatenate([worst, every_exponent(), np.linspace(-1e5, 1e5, 400_003, dtype=np.float32), _near_multiples()])
    x = x[~(np.abs(x) > REACH) | np.isinf(x)]
    got = native(function, 1, lanes, avx512=avx512)(x)
    with np.errstate(invalid="ignore"):
        expected = getattr(np, function)(x.astype(np.float64))
    assert agree_outside_range(got, expected)
    assert largest_error_ulp(got, expected) <= BOUND


@FUNCTIONS
def test_numpys_float64_is_exact_enough_to_judge_by(function: str) -> None:
    x = _near_multiples()[::97].astype(np.float64)
    got = getattr(np, function)(x)
    with mp.workdps(60):
        errors = [abs(mpf(value) / getattr(mp, function)(mpf(at)) - 1) for at, value in zip(x, got, strict=True)]
    assert max(errors) < 2.0**-40
