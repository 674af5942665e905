"""Fits the polynomials of `tessera.backend.llvm.vecmath` and writes `coefficients.py` beside it.

Method: the Remez exchange on a fixed grid in mpmath's arbitrary precision, so that a run gives the same digits on
every machine. Coefficients are rounded to the type that evaluates them (on one side of zero one after the other, lowest
power first, the rest fitted anew each time); the error noted beside a table is that of the rounded polynomial.

    python tools/fit_math.py            # writes the tables
    python tools/fit_math.py erf_tail   # fits one and prints it
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpmath import lu_solve, matrix, mp, mpf

Number = Any  # mpmath's mpf; mpmath is untyped
Function = Callable[[Number], Number]

DIGITS = 50
GRID_POINTS = 1201
EXCHANGES = 60
SETTLED = mpf("1e-2")  # largest error over levelled error, less one, at which an exchange ends
OUTPUT = Path(__file__).parents[1] / "src/tessera/backend/llvm/vecmath/coefficients.py"


@dataclass(frozen=True)
class Target:
    """What to approximate: `function` on `[low, high]`, least in `|weight * error|`, by a polynomial of `degree`."""

    name: str
    meaning: str
    function: Function
    weight: Function
    low: Number
    high: Number
    degree: int
    bits: int = 32
    fixed: tuple[Number, ...] = ()


@dataclass(frozen=True)
class Fit:
    """Coefficients in rising powers and the largest weighted error."""

    coefficients: tuple[Number, ...]
    error: Number


@dataclass(frozen=True)
class Sample:
    """A grid point and what the target says there."""

    point: Number
    value: Number
    weight: Number


def polynomial(coefficients: Sequence[Number], point: Number) -> Number:
    """Horner's rule, coefficients in rising powers."""
    total = mpf(0)
    for coefficient in reversed(coefficients):
        total = total * point + coefficient
    return total


def samples_of(target: Target) -> list[Sample]:
    """The target on Chebyshev-spaced points of its interval, both ends included."""
    middle, half = (target.high + target.low) / 2, (target.high - target.low) / 2
    points = [middle - half * mp.cos(mp.pi * index / (GRID_POINTS - 1)) for index in range(GRID_POINTS)]
    return [Sample(point, target.function(point), target.weight(point)) for point in points]


def weighted_errors(coefficients: Sequence[Number], samples: Sequence[Sample]) -> list[Number]:
    """`weight * (polynomial - value)` at every sample."""
    return [at.weight * (polynomial(coefficients, at.point) - at.value) for at in samples]


def _levelled(target: Target, reference: Sequence[Sample]) -> Fit:
    """The polynomial whose weighted errors at the reference points are equal and alternate in sign."""
    size = len(reference)
    start = len(target.fixed)
    left, right = matrix(size, size), matrix(size, 1)
    for row, at in enumerate(reference):
        for column in range(size - 1):
            left[row, column] = at.weight * at.point ** (start + column)
        left[row, size - 1] = 1 if row % 2 else -1
        right[row] = at.weight * (at.value - polynomial(target.fixed, at.point))
    solution = list(lu_solve(left, right))
    return Fit((*target.fixed, *solution[:-1]), abs(solution[-1]))


def _extrema(errors: Sequence[Number], count: int) -> list[int]:
    """Indices of the largest error of each run of one sign, `count` neighbours of them that hold the largest."""
    peaks: list[int] = []
    for index, value in enumerate(errors):
        if peaks and (errors[peaks[-1]] >= 0) == (value >= 0):
            if abs(value) > abs(errors[peaks[-1]]):
                peaks[-1] = index
        else:
            peaks.append(index)
    while len(peaks) > count:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    if len(peaks) < count:
        raise ArithmeticError(f"the error alternates {len(peaks)} times where {count} are needed")
    return peaks


def remez(target: Target, samples: Sequence[Sample]) -> Fit:
    """The minimax polynomial; ArithmeticError when the exchange does not settle."""
    count = target.degree + 2 - len(target.fixed)
    last = len(samples) - 1
    # Middles of equal arcs: none is the interval's centre when count is even, where a weight may vanish.
    indices = [round(last * (2 * index + 1) / (2 * count)) for index in range(count)]
    fit = Fit((), mpf(0))
    for _ in range(EXCHANGES):
        fit = _levelled(target, [samples[index] for index in indices])
        errors = weighted_errors(fit.coefficients, samples)
        largest = max(abs(error) for error in errors)
        if largest <= fit.error * (1 + SETTLED):
            return Fit(fit.coefficients, largest)
        indices = _extrema(errors, count)
    raise ArithmeticError(f"{target.name}: the exchange did not settle at an error of {mp.nstr(fit.error, 4)}")


def rounded(value: Number, bits: int) -> Number:
    """`value` rounded to the nearest number of the IEEE format with that many bits (32 or 64)."""
    double = float(value)
    return mpf(struct.unpack("f", struct.pack("f", double))[0] if bits == 32 else double)


def fit_rounded(target: Target) -> Fit:
    """The minimax polynomial with coefficients of the target's format."""
    samples = samples_of(target)
    if target.low < 0:  # powers without the lowest ones are no Haar system across zero: no exchange, round at once
        coefficients = tuple(rounded(value, target.bits) for value in remez(target, samples).coefficients)
    else:
        while len(target.fixed) <= target.degree:
            following = rounded(remez(target, samples).coefficients[len(target.fixed)], target.bits)
            target = replace(target, fixed=(*target.fixed, following))
        coefficients = target.fixed
    return Fit(coefficients, max(abs(error) for error in weighted_errors(coefficients, samples)))


def _exponential(name: str, bits: int, degree: int) -> Target:
    half = mp.log(2) / 2
    return Target(
        name,
        "q of exp(r) = 1 + r + r^2 q(r), |r| <= ln(2)/2; relative",
        lambda r: (mp.expm1(r) - r) / r**2 if r else mpf("0.5"),
        lambda r: r**2 / mp.exp(r),
        -half * mpf("1.0001"),  # range reduction rounds, so r passes the middle by a little
        half * mpf("1.0002"),
        degree,
        bits,
    )


def _tanh_rest(square: Number) -> Number:
    x = mp.sqrt(square)
    return (mp.tanh(x) - x) / (x * square) if square else mpf(-1) / 3


def _atanh_rest(square: Number) -> Number:
    s = mp.sqrt(square)
    return 2 * (mp.atanh(s) - s) / (s * square) if square else mpf(2) / 3


def _sine_rest(square: Number) -> Number:
    r = mp.sqrt(square)
    return (mp.sin(r) - r) / (r * square) if square else mpf(-1) / 6


def _fading(x: Number) -> Number:
    return mp.root(mp.erfc(x), 8)


def _fading_slope(x: Number) -> Number:
    return (1 - _fading(x)) / x if x else 1 / (4 * mp.sqrt(mp.pi))


def _fading_rest(x: Number) -> Number:
    return _fading_slope(x) - rounded(_fading_slope(mpf(0)), 32)


def _fading_weight(x: Number) -> Number:
    return 8 * _fading(x) ** 7 * x / mp.erf(x) if x else 4 * mp.sqrt(mp.pi)


def targets() -> tuple[Target, ...]:
    """Every table of `coefficients.py`."""
    root = mp.sqrt(mpf(2))
    largest_s = ((root - 1) / (root + 1)) ** 2
    return (
        _exponential("EXP_F32", 32, 4),
        _exponential("EXP_F64", 64, 10),
        Target(
            "EXP2_F32",
            "q of 2^r = 1 + r q(r), |r| <= 1/2; relative",
            lambda r: (mp.mpf(2) ** r - 1) / r if r else mp.log(2),
            lambda r: r / mp.mpf(2) ** r,
            mpf("-0.5"),
            mpf("0.50001"),
            5,
        ),
        Target(
            "EXPM1_WIDE",
            "q of expm1(r) = r + r^2 q(r), |r| <= ln(2)/2, for fp32 in fp64; relative",
            lambda r: (mp.expm1(r) - r) / r**2 if r else mpf("0.5"),
            lambda r: r**2 / mp.expm1(r) if r else mpf(0),
            -mp.log(2) / 2 * mpf("1.0001"),
            mp.log(2) / 2 * mpf("1.0002"),
            5,
            64,
        ),
        Target(
            "LOG_F64",
            "q of log((1 + s) / (1 - s)) = 2 s + s^3 q(s^2), sqrt(1/2) <= (1 + s) / (1 - s) <= sqrt(2); relative",
            _atanh_rest,
            lambda square: mp.sqrt(square) * square / (2 * mp.atanh(mp.sqrt(square))) if square else mpf(0),
            mpf(0),
            largest_s * mpf("1.0001"),
            6,
            64,
        ),
        Target(
            "LOG_WIDE",
            "q of log(1 + f) = f + f^2 q(f), 3/4 <= 1 + f <= 3/2, for fp32 in fp64; relative",
            lambda f: (mp.log1p(f) - f) / f**2 if f else mpf("-0.5"),
            lambda f: f**2 / mp.log1p(f) if f else mpf(0),
            mpf("-0.25"),
            mpf("0.5"),
            10,
            64,
        ),
        Target(
            "TANH_F32",
            "q of tanh(x) = x + x^3 q(x^2), |x| <= 5/8; relative",
            _tanh_rest,
            lambda square: mp.sqrt(square) * square / mp.tanh(mp.sqrt(square)) if square else mpf(0),
            mpf(0),
            mpf("0.625") ** 2,
            4,
        ),
        Target(
            "SIN_WIDE",
            "q of sin(r) = r + r^3 q(r^2), |r| <= pi/2, for fp32 in fp64; relative",
            _sine_rest,
            lambda square: mp.sqrt(square) * square / mp.sin(mp.sqrt(square)) if square else mpf(0),
            mpf(0),
            (mp.pi / 2 * mpf("1.0001")) ** 2,
            4,
            64,
        ),
        Target(
            "ERF_F32",
            "q of erf(x) = 1 - (1 - x (h + q(x)))^8, h = fp32(1 / (4 sqrt(pi))), 0 <= x <= 3.93; relative",
            _fading_rest,
            _fading_weight,
            mpf(0),
            mpf("3.93"),
            7,
        ),
        Target(
            "ERF_WIDE",
            "q of erf(x) = 1 - (1 - x q(x))^8, for fp32 in fp64, 0 <= x <= 3.93; relative",
            _fading_slope,
            _fading_weight,
            mpf(0),
            mpf("3.93"),
            9,
            64,
        ),
    )


def render(target: Target, fit: Fit) -> str:
    """The table as it stands in `coefficients.py`."""
    rows = "".join(f"    {float(value)!r},\n" for value in fit.coefficients)
    comment = f"# {target.meaning}: 2^{float(mp.log(fit.error, 2)):.2f}"
    return f"{comment}\n{target.name} = (\n{rows})\n"


HEADER = '''"""Polynomials of the vector math, rising powers, each with the largest error it reaches on its interval.

Written by `tools/fit_math.py`; edit that, not this.
"""

'''


def main(names: Sequence[str]) -> None:
    """Prints the named tables; writes all of them when none is named."""
    mp.dps = DIGITS
    table: Mapping[str, Target] = {target.name: target for target in targets()}
    if names:
        for name in names:
            target = table[name.upper()]
            print(render(target, fit_rounded(target)))
        return
    OUTPUT.write_text(HEADER + "\n".join(render(target, fit_rounded(target)) for target in table.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
