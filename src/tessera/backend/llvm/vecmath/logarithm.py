"""log in fp64, what the logarithms of `widened` share with it, and pow.

Sources: the reduction to [sqrt(1/2), sqrt(2)] is Cody and Waite's, Software Manual for the Elementary Functions (1980),
chapter 5; the special cases are those of C99 Annex F.9. The polynomials are our own.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.exponential import CONSTANTS, exp
from tessera.backend.llvm.vecmath.lanes import Lanes

INFINITY: Final = float("inf")
NAN: Final = float("nan")


ROOT_HALF: Final = 0x3FE6A09E667F3BCD
THREE_QUARTERS: Final = 0x3FE8000000000000
"""Bit patterns of where fractions begin."""
ONE: Final = 0x3FF0000000000000
MANTISSA: Final = 0x000FFFFFFFFFFFFF
SMALLEST_NORMAL: Final = 2.0**-1022


def split(on: Lanes, normal: str, low: int, offset: str) -> tuple[str, str]:
    """e, f with x = 2^e (1 + f) and 1 + f in [low, 2 low), for positive finite normal doubles.

    `low` is a bit pattern; `offset` is what is taken off the biased exponent: the bias, and 2^52.
    """
    width = on.format.mantissa_bits
    moved = on.on_bits("add", on.bits(normal), ONE - low)
    mantissa = on.on_bits("add", on.on_bits("and", moved, MANTISSA), low)
    f = on.sub(on.from_bits(mantissa), on.constant(1.0))
    # The biased exponent in the low bits of 2^width is the number 2^width + exponent.
    exponent = on.on_bits("or", on.on_bits("lshr", moved, width), (on.format.bias + width) << width)
    return on.sub(on.from_bits(exponent), offset), f


def exponent_offset(on: Lanes) -> float:
    """The offset of `split` for numbers that are as they came."""
    return 2.0**on.format.mantissa_bits + on.format.bias


def _split_any(on: Lanes, x: str) -> tuple[str, str]:
    """`split` of positive finite numbers, denormals included."""
    width, offset = on.format.mantissa_bits, exponent_offset(on)
    denormal = on.compare("olt", x, on.constant(SMALLEST_NORMAL))
    normal = on.select(denormal, on.mul(x, on.constant(2.0**width)), x)
    return split(on, normal, ROOT_HALF, on.select(denormal, on.constant(offset + width), on.constant(offset)))


def with_poles(on: Lanes, result: str, x: str, pole: float) -> str:
    """`result` where x lies between the pole and infinity, else what C99 says: -inf at the pole, NaN below, else x."""
    at = on.constant(pole)
    ordinary = on.mask("and", on.compare("ogt", x, at), on.compare("olt", x, on.constant(INFINITY)))
    below = on.select(on.compare("oeq", x, at), on.constant(-INFINITY), on.constant(NAN))
    # What is left above is NaN or +inf: they are their own logarithm.
    special = on.select(on.compare("ole", x, at), below, x)
    return on.select(ordinary, result, special)


def log(on: Lanes, x: str) -> str:
    """The natural logarithm in fp64: at most 2 ulp; log(0) = -inf, NaN below."""
    constants = CONSTANTS["f64"]
    e, f = _split_any(on, x)
    # s = f / (2 + f); log(1 + f) = 2 s + s^3 q = f - s (f - s^2 q): the large term is exact.
    s = on.div(f, on.add(f, on.constant(2.0)))
    square = on.mul(s, s)
    rest = on.mul(square, on.polynomial(coefficients.LOG_F64, square))
    tail = on.fma(e, on.constant(constants.ln2_low), on.mul(s, on.sub(rest, f)))
    result = on.fma(e, on.constant(constants.ln2_high), on.add(f, tail))
    return with_poles(on, result, x, 0.0)


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
