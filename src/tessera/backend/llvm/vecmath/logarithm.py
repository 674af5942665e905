"""log, log1p and pow.

Sources: the reduction to [sqrt(1/2), sqrt(2)] is Cody and Waite's, Software Manual for the Elementary Functions (1980),
chapter 5; the special cases are those of C99 Annex F.9; the correction in `log1p` is Kahan's (HP-15C Advanced Functions
Handbook, 1982). The polynomials are our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.exponential import CONSTANTS, exp
from tessera.backend.llvm.vecmath.lanes import FloatType, Lanes

INFINITY: Final = float("inf")
NAN: Final = float("nan")


@dataclass(frozen=True)
class Pattern:
    """Bit patterns that split a number: of sqrt(1/2), of 1, and the mantissa's bits."""

    root_half: int
    one: int
    mantissa: int
    smallest_normal: float


PATTERNS: Final[dict[FloatType, Pattern]] = {
    "f32": Pattern(0x3F3504F3, 0x3F800000, 0x007FFFFF, 2.0**-126),
    "f64": Pattern(0x3FE6A09E667F3BCD, 0x3FF0000000000000, 0x000FFFFFFFFFFFFF, 2.0**-1022),
}


def _split(on: Lanes, x: str) -> tuple[str, str]:
    """e, f with x = 2^e (1 + f) and 1 + f in [sqrt(1/2), sqrt(2)), for positive finite x, denormals included."""
    pattern, width = PATTERNS[on.dtype], on.format.mantissa_bits
    denormal = on.compare("olt", x, on.constant(pattern.smallest_normal))
    normal = on.select(denormal, on.mul(x, on.constant(2.0**width)), x)
    moved = on.on_bits("add", on.bits(normal), pattern.one - pattern.root_half)
    mantissa = on.on_bits("add", on.on_bits("and", moved, pattern.mantissa), pattern.root_half)
    f = on.sub(on.from_bits(mantissa), on.constant(1.0))
    # The biased exponent in the low bits of 2^width is the number 2^width + exponent.
    magic = 2.0**width
    exponent = on.on_bits("or", on.on_bits("lshr", moved, width), (on.format.bias + width) << width)
    offset = on.select(denormal, on.constant(magic + on.format.bias + width), on.constant(magic + on.format.bias))
    return on.sub(on.from_bits(exponent), offset), f


def _log_single(on: Lanes, e: str, f: str) -> str:
    constants = CONSTANTS["f32"]
    square = on.mul(f, f)
    tail = on.mul(on.mul(square, f), on.polynomial(coefficients.LOG_F32, f))
    tail = on.fma(e, on.constant(constants.ln2_low), tail)
    tail = on.fma(square, on.constant(-0.5), tail)
    return on.fma(e, on.constant(constants.ln2_high), on.add(f, tail))


def _log_double(on: Lanes, e: str, f: str) -> str:
    # s = f / (2 + f); log(1 + f) = 2 s + s^3 q = f - s (f - s^2 q): the large term is exact.
    constants = CONSTANTS["f64"]
    s = on.div(f, on.add(f, on.constant(2.0)))
    square = on.mul(s, s)
    rest = on.mul(square, on.polynomial(coefficients.LOG_F64, square))
    tail = on.fma(e, on.constant(constants.ln2_low), on.mul(s, on.sub(rest, f)))
    return on.fma(e, on.constant(constants.ln2_high), on.add(f, tail))


def log(on: Lanes, x: str) -> str:
    """The natural logarithm: at most 2 ulp; log(0) = -inf, NaN below."""
    e, f = _split(on, x)
    result = _log_single(on, e, f) if on.dtype == "f32" else _log_double(on, e, f)
    ordinary = on.mask(
        "and",
        on.compare("ogt", x, on.constant(0.0)),
        on.compare("olt", x, on.constant(INFINITY)),
    )
    # What remains is NaN, +inf, a zero of either sign, or negative: the first two are their own logarithm.
    below = on.select(on.compare("oeq", x, on.constant(0.0)), on.constant(-INFINITY), on.constant(NAN))
    special = on.select(on.compare("ole", x, on.constant(0.0)), below, x)
    return on.select(ordinary, result, special)


def log1p(on: Lanes, x: str) -> str:
    """log(1 + x) in fp32: at most 3 ulp, near 0 too."""
    one = on.constant(1.0)
    sum_ = on.add(x, one)
    lost = on.sub(x, on.sub(sum_, one))
    rounded = log(on, sum_)
    corrected = on.add(rounded, on.div(lost, sum_))
    # Where the sum is exact, infinite, 0 or negative, the quotient adds nothing or spoils the logarithm.
    plain = on.mask("or", on.compare("ole", sum_, on.constant(0.0)), on.compare("oeq", sum_, on.constant(INFINITY)))
    result = on.select(plain, rounded, corrected)
    tiny = on.compare("olt", on.magnitude(x), on.constant(2.0**-25))
    return on.select(tiny, x, result)


def _is_integral(on: Lanes, a: str) -> str:
    return on.compare("oeq", on.intrinsic("trunc", a), a)


def powf(on: Lanes, x: str, y: str) -> str:
    """x^y in fp32: at most 1 ulp, computed in double; the special cases of C99 F.9.4.4."""
    size = on.magnitude(x)
    double, wide_size = on.converted(size, "f64")
    _, wide_y = on.converted(y, "f64")
    _, result = double.converted(exp(double, double.mul(wide_y, log(double, wide_size))), "f32")
    zero, one = on.constant(0.0), on.constant(1.0)
    integral = _is_integral(on, y)
    even = on.mask("and", integral, _is_integral(on, on.mul(y, on.constant(0.5))))  # +-inf counts as even
    negative = on.mask("and", on.compare("olt", x, zero), on.compare("ogt", x, on.constant(-INFINITY)))
    fractional = on.select(negative, on.constant(NAN), result)
    result = on.select(integral, on.select(even, result, on.with_sign(result, x)), fractional)
    is_one = on.mask("or", on.compare("oeq", y, zero), on.compare("oeq", x, one))
    is_one = on.mask("or", is_one, on.mask("and", even, on.compare("oeq", size, one)))
    return on.select(is_one, one, result)
