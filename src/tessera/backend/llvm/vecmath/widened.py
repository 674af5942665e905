"""fp32 functions computed in fp64 and rounded once: at most 0.52 ulp, where rounding alone takes 0.5.

Lanes are converted to double, one register to two. There reduced arguments are exact enough as they come, no power of
two underflows and denormals are ordinary numbers, so that a short polynomial (good to 2^-30 or better) is all that is
left of each function. Methods and their sources stand in `exponential`, `logarithm` and `error_function`.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.error_function import SATURATED, one_less_eighth_power
from tessera.backend.llvm.vecmath.exponential import LOG2_E, Rounded, power_of_two, round_to_integer
from tessera.backend.llvm.vecmath.lanes import Lanes
from tessera.backend.llvm.vecmath.logarithm import THREE_QUARTERS, exponent_offset, split, with_poles

LN2: Final = 0.6931471805599453
OVERFLOW: Final = 89.0
UNDERFLOW: Final = -104.0
MINUS_ONE: Final = -18.0  # from here down e^x - 1 rounds to -1
TWICE_ONE: Final = 19.0  # from half of this on tanh rounds to 1
EIGHT: Final = 8  # doubles in a register of AVX-512
LINEAR: Final = 2.0**-28  # up to here log(1 + x) is x to a thirtieth of an ulp, and 1 + x is not yet exact in fp64


def _single(double: Lanes, value: str) -> str:
    return double.converted(value, "f32")[1]


def _bounded(on: Lanes, x: str, low: float, high: float) -> tuple[Lanes, str]:
    return on.converted(on.at_least(on.at_most(x, high), low), "f64")


def _reduced(double: Lanes, x: str) -> tuple[Rounded, str]:
    """n and the polynomial p = (e^r - 1) / r with x = n ln(2) + r, as n, r p: e^x is 2^n (1 + r p)."""
    n = round_to_integer(double, x, LOG2_E)
    r = double.fma(n.value, double.constant(-LN2), x)
    return n, double.mul(r, double.polynomial((1.0, *coefficients.EXPM1_WIDE), r))


def _expm1(double: Lanes, x: str) -> str:
    n, p = _reduced(double, x)
    power = power_of_two(double, n)
    return double.fma(power, p, double.sub(power, double.constant(1.0)))


def exp(on: Lanes, x: str) -> str:
    """e^x; inf above 88.72, gradual underflow to 0."""
    double, wide = _bounded(on, x, UNDERFLOW, OVERFLOW)
    n, p = _reduced(double, wide)
    power = power_of_two(double, n)
    return _single(double, double.fma(power, p, power))


def expm1(on: Lanes, x: str) -> str:
    """e^x - 1, near 0 too; it keeps the sign of zero."""
    double, wide = _bounded(on, x, MINUS_ONE, OVERFLOW)
    return on.with_sign(_single(double, _expm1(double, wide)), x)


def tanh(on: Lanes, x: str) -> str:
    """t / (t + 2) with t = e^2x - 1."""
    double, wide = _bounded(on, on.add(x, x), -TWICE_ONE, TWICE_ONE)
    t = _expm1(double, wide)
    return on.with_sign(_single(double, double.div(t, double.add(t, double.constant(2.0)))), x)


def _has_registers(double: Lanes) -> bool:
    """Whether the lanes fill registers of AVX-512 that halve down to one."""
    registers = double.lanes // EIGHT
    return double.emitter.target.has_avx512 and double.lanes % EIGHT == 0 and registers & (registers - 1) == 0


def _mantissa(double: Lanes, x: str) -> str:
    """AVX-512's `vgetmantpd`: in [3/4, 3/2); NaN of negative numbers, 1 of infinity, and 1 or -1 of zero."""
    kind = f"<{EIGHT} x double>"
    interval_and_sign = ("i32", "11")
    rest = (kind, "zeroinitializer"), ("i8", "-1"), ("i32", "4")
    return double.each_register("llvm.x86.avx512.mask.getmant.pd.512", EIGHT, x, interval_and_sign, *rest)


def _exponent(double: Lanes, x: str) -> str:
    """AVX-512's `vgetexppd`: floor(log2 |x|), infinities of infinity and of zero."""
    rest = (f"<{EIGHT} x double>", "zeroinitializer"), ("i8", "-1"), ("i32", "4")
    return double.each_register("llvm.x86.avx512.mask.getexp.pd.512", EIGHT, x, *rest)


def _log_of_parts(double: Lanes, e: str, f: str) -> str:
    polynomial = double.polynomial((1.0, *coefficients.LOG_WIDE), f)
    return _single(double, double.fma(f, polynomial, double.mul(e, double.constant(LN2))))


def _log(on: Lanes, double: Lanes, wide: str, x: str, pole: float) -> str:
    """log(wide), of doubles made of x, which are 0 where x is at the pole."""
    if _has_registers(double):
        mantissa = _mantissa(double, wide)
        e = double.sub(_exponent(double, wide), _exponent(double, mantissa))
        return _log_of_parts(double, e, double.sub(mantissa, double.constant(1.0)))
    e, f = split(double, wide, THREE_QUARTERS, double.constant(exponent_offset(double)))
    return with_poles(on, _log_of_parts(double, e, f), x, pole)


def log(on: Lanes, x: str) -> str:
    """The natural logarithm; log(0) = -inf, NaN below."""
    double, wide = on.converted(x, "f64")
    return _log(on, double, wide, x, 0.0)


def log1p(on: Lanes, x: str) -> str:
    """log(1 + x), near 0 too."""
    double, wide = on.converted(x, "f64")
    result = _log(on, double, double.add(wide, double.constant(1.0)), x, -1.0)
    return on.select(on.compare("olt", on.magnitude(x), on.constant(LINEAR)), x, result)


def erf(on: Lanes, x: str) -> str:
    """The error function, denormals included."""
    double, size = on.converted(on.at_most(on.magnitude(x), SATURATED), "f64")
    s = double.mul(size, double.polynomial(coefficients.ERF_WIDE, size))
    return on.with_sign(_single(double, one_less_eighth_power(double, s)), x)
