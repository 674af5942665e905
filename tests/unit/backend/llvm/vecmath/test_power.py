"""powf: one ulp on random arguments, and the table of special cases of C99 F.9.4.4."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.backend.llvm.vecmath.accuracy import agree_outside_range, largest_error_ulp
from tests.unit.backend.llvm.vecmath.harness import native

SPECIAL = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, -1.5,
    1e-45, -1e-45, 1e38, -1e38, 16777215.0, -16777215.0, 16777218.0, 1 / 3,
]  # fmt: skip


@pytest.mark.parametrize(("lanes", "avx512"), [(16, True), (8, False), (1, False)])
def test_every_pair_of_special_values(lanes: int, avx512: bool) -> None:
    pairs = np.array([(base, exponent) for base in SPECIAL for exponent in SPECIAL], np.float32)
    got = native("powf", 2, lanes, avx512=avx512)(pairs[:, 0], pairs[:, 1])
    with np.errstate(all="ignore"):
        expected = np.power(pairs[:, 0].astype(np.float64), pairs[:, 1].astype(np.float64))  # libm's, per Annex F
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got[number]), np.signbit(expected[number]))
    assert agree_outside_range(got, expected)
    assert largest_error_ulp(got, expected) <= 0.51


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (math.nan, 0.0, 1.0),
        (1.0, math.nan, 1.0),
        (-1.0, math.inf, 1.0),
        (-1.0, -math.inf, 1.0),
        (0.5, math.inf, 0.0),
        (2.0, -math.inf, 0.0),
        (-0.0, -3.0, -math.inf),
        (-0.0, -2.0, math.inf),
        (-math.inf, 3.0, -math.inf),
        (-math.inf, 0.5, math.inf),
        (-8.0, 3.0, -512.0),
        (-8.0, 2.0, 64.0),
    ],
)
def test_cases_of_the_standard(base: float, exponent: float, expected: float) -> None:
    got = native("powf", 2)(np.array([base], np.float32), np.array([exponent], np.float32))
    assert got[0] == expected


def test_a_negative_base_and_a_tiny_exponent_is_nan() -> None:
    # Half of the smallest denormal rounds to 0, an integer; the exponent itself is none.
    assert math.isnan(native("powf", 2)(np.array([-1.0], np.float32), np.array([1e-45], np.float32))[0])


@pytest.mark.parametrize(("lanes", "avx512"), [(16, True), (8, False)])
def test_random_arguments_are_right_to_one_ulp(lanes: int, avx512: bool) -> None:
    generator = np.random.default_rng(7)
    base = generator.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    exponent = generator.uniform(-8, 8, base.size).astype(np.float32)
    near = generator.uniform(0.5, 2.0, base.size).astype(np.float32)
    large = generator.uniform(-200, 200, base.size).astype(np.float32)
    base, exponent = np.concatenate([base, near]), np.concatenate([exponent, large])
    got = native("powf", 2, lanes, avx512=avx512)(base, exponent)
    with np.errstate(all="ignore"):
        expected = np.power(base.astype(np.float64), exponent.astype(np.float64))
    assert agree_outside_range(got, expected)
    assert largest_error_ulp(got, expected) <= 0.51
