"""fp32 functions, for AVX-512, AVX2 and one lane: error bounds over the whole range, and the special cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tessera.backend.llvm.vecmath import FUNCTIONS, expand
from tests.unit.backend.llvm.vecmath.accuracy import (
    agree_outside_range,
    every_exponent,
    largest_error_ulp,
    neighbourhood,
)
from tests.unit.backend.llvm.vecmath.harness import Cpu, TextEmitter, native

Doubles = npt.NDArray[np.float64]

WIDTHS = pytest.mark.parametrize(
    ("lanes", "avx512"),
    [(16, True), (8, False), (1, False), (32, True)],
    ids=["avx512", "avx2", "scalar", "two-registers"],
)


def _erf(x: Doubles) -> Doubles:
    return np.array([math.erf(value) for value in x])


REFERENCES: dict[str, tuple[Callable[[Doubles], Doubles], float]] = {
    "erf": (_erf, 0.515),
    "exp": (np.exp, 0.505),
    "exp2": (np.exp2, 1.25),
    "expm1": (np.expm1, 0.51),
    "log": (np.log, 0.505),
    "log1p": (np.log1p, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "sqrt": (np.sqrt, 0.5),
    "tanh": (np.tanh, 0.51),
}
APPROXIMATE: dict[str, float] = {"erf": 3.5, "exp": 1.0, "tanh": 1.6}
ERF_RELATIVE = 2.0**-122
"""From here on the error of the approximate erf is relative: an eighth of it is a normal number."""
# Where a branch or a range ends: overflow, underflow, the switch between two polynomials, saturation.
BOUNDARIES = [
    1e-45, 1e-38, 0.34657, 0.625, 0.70710677, 1.0, 1.4142135, 3.93, 9.02, 20.0, 88.722839, 128.0,
    -0.34657, -0.625, -1.0, -3.93, -9.02, -17.33, -87.336544, -103.97208, -126.0, -149.0, -150.0,
]  # fmt: skip


# The arguments of the largest errors found among all numbers of the ranges where functions are neither linear nor flat
# (docs/numerics.md): 2^-26 to 104 for exp, 2^-14 to 10 for tanh, and so on.
WORST = [
    0.34660446643829346, -0.3465220630168915, 0.03120087832212448, 2.552320957183838, 1.2610175609588623,
    0.2639011740684509, -0.05995461344718933, 0.34671857953071594, -0.06416717171669006,
]  # fmt: skip


def _everywhere() -> npt.NDArray[np.float32]:
    return np.concatenate([every_exponent(), neighbourhood([*BOUNDARIES, *WORST], width=200)])


@WIDTHS
@pytest.mark.parametrize("function", sorted(REFERENCES))
def test_error_is_bounded_over_all_exponents(function: str, lanes: int, avx512: bool) -> None:
    reference, bound = REFERENCES[function]
    x = _everywhere()
    got = native(function, 1, lanes, avx512=avx512)(x)
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64))
    assert agree_outside_range(got, expected)
    assert largest_error_ulp(got, expected) <= bound


@WIDTHS
@pytest.mark.parametrize("function", sorted(APPROXIMATE))
def test_error_of_approximations_is_bounded(function: str, lanes: int, avx512: bool) -> None:
    reference, bound = REFERENCES[function][0], APPROXIMATE[function]
    x = _everywhere()
    got = native(function, 1, lanes, avx512=avx512, approximate=True)(x)
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64))
    assert agree_outside_range(got, expected)
    # erf of almost nothing has a test of its own.
    counts = np.abs(x) >= ERF_RELATIVE if function == "erf" else np.ones(x.shape, np.bool_)
    assert largest_error_ulp(got[counts], expected[counts]) <= bound


@WIDTHS
def test_approximate_erf_of_almost_nothing_has_an_absolute_error(lanes: int, avx512: bool) -> None:
    x = np.arange(0, np.array([ERF_RELATIVE], np.float32).view(np.uint32)[0], 4999, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, -x])
    got, expected = native("erf", 1, lanes, avx512=avx512, approximate=True)(x), _erf(x.astype(np.float64))
    spacing = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert np.all(np.abs(got.astype(np.float64) - expected) <= np.maximum(3.5 * spacing, 2.0**-146))


def test_approximate_erf_is_exact_to_half_an_ulp_on_average() -> None:
    x = np.linspace(1e-3, 4.0, 200_001, dtype=np.float32)
    got, expected = native("erf", 1, approximate=True)(x), _erf(x.astype(np.float64))
    spacing = np.spacing(expected.astype(np.float32)).astype(np.float64)
    assert np.mean(np.abs(got.astype(np.float64) - expected) / spacing) <= 0.5


@WIDTHS
@pytest.mark.parametrize("function", ["erf", "expm1", "log1p", "sin", "sqrt", "tanh"])
def test_odd_functions_keep_the_sign_of_zero_and_denormals(function: str, lanes: int, avx512: bool) -> None:
    x = np.array([0.0, -0.0, 1e-45, 1e-40, 1.1e-38], np.float32)
    got = native(function, 1, lanes, avx512=avx512)(x)
    assert np.array_equal(np.signbit(got), np.signbit(x))
    assert got[0] == got[1] == 0.0
    if function not in ("erf", "sqrt"):
        assert np.array_equal(got, x)


@WIDTHS
def test_exp_underflows_gradually(lanes: int, avx512: bool) -> None:
    x = np.linspace(-104.5, -87.0, 4001, dtype=np.float32)
    expected = np.exp(x.astype(np.float64)).astype(np.float32)
    spacing = np.maximum(np.spacing(expected), np.float32(2.0**-149))
    for approximate in (False, True):
        got = native("exp", 1, lanes, avx512=avx512, approximate=approximate)(x)
        assert np.all(np.abs(got.astype(np.float64) - expected) <= spacing)
        assert np.count_nonzero((got > 0) & (got < 2.0**-126)) > 3000
        assert got[0] == 0.0


def test_saturating_functions_never_pass_one() -> None:
    x = neighbourhood([0.99, 1.0, 3.0, 3.93, 8.0, 9.02, 1e5], width=20_000)
    for function in ("erf", "tanh"):
        for approximate in (False, True):
            got = native(function, 1, approximate=approximate)(x)
            assert np.all(got <= 1.0)
            assert got.max() == 1.0


def test_sixteen_lanes_with_avx512_give_the_bits_that_eight_give_without() -> None:
    x = every_exponent(9973)
    for function, approximate in [(name, False) for name in REFERENCES] + [(name, True) for name in APPROXIMATE]:
        wide = native(function, 1, 16, avx512=True, approximate=approximate)(x)
        narrow = native(function, 1, 8, avx512=False, approximate=approximate)(x)
        assert np.array_equal(wide, narrow, equal_nan=True), function


def test_unknown_function_is_a_key_error() -> None:
    assert "cosh" not in FUNCTIONS
    with pytest.raises(KeyError, match="cosh"):
        expand("cosh", ["%x"], TextEmitter(Cpu(True)), 16, "f32")
