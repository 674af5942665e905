"""exp, exp2, tanh in the dtype of their argument: range reduction to 2^n times a polynomial.

Sources: the method is Cody and Waite's, Software Manual for the Elementary Functions (1980), chapter 6; the rounding by
a shifter is described in Muller, Elementary Functions (3rd ed., 2016), section 11. The polynomials are our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.lanes import FloatType, Lanes

LOG2_E: Final = 1.4426950408889634


@dataclass(frozen=True)
class ExponentialConstants:
    """ln(2) in two parts, the first with so few bits that n times it is exact, and where exp has left the format."""

    ln2_high: float
    ln2_low: float
    overflow: float
    underflow: float
    polynomial: tuple[float, ...]


CONSTANTS: Final[dict[FloatType, ExponentialConstants]] = {
    "f32": ExponentialConstants(0.693359375, -2.12194440054690583e-4, 89.0, -104.0, coefficients.EXP_F32),
    "f64": ExponentialConstants(
        float.fromhex("0x1.62e42fee00000p-1"),
        float.fromhex("0x1.a39ef35793c76p-33"),
        710.0,
        -746.0,
        coefficients.EXP_F64,
    ),
}


@dataclass(frozen=True)
class Rounded:
    """An integral value twice: as a number, and in the low bits of a bit pattern."""

    value: str
    pattern: str


def round_to_integer(on: Lanes, a: str, factor: float) -> Rounded:
    """The integer nearest `a * factor`, for results below 2^(mantissa bits - 2) in magnitude; defined for NaN too."""
    shifter = on.constant(on.format.shifter)
    shifted = on.fma(a, on.constant(factor), shifter)
    return Rounded(on.sub(shifted, shifter), on.bits(shifted))


def power_of_two(on: Lanes, n: Rounded) -> str:
    """2^n, where that is a normal number: the shift drops all of the pattern but its low bits."""
    biased = on.on_bits("add", n.pattern, on.format.bias)
    return on.from_bits(on.on_bits("shl", biased, on.format.mantissa_bits))


def _scale_instruction(on: Lanes, p: str, n: str) -> str:
    """AVX-512's `vscalefps`, `vscalefpd`: p * 2^n, denormal results and overflow included."""
    kind, mask = ("ps", "i16") if on.dtype == "f32" else ("pd", "i8")
    function = f"{on.type} @llvm.x86.avx512.mask.scalef.{kind}.512"
    types = [on.type] * 3 + [mask, "i32"]
    values = [p, n, "zeroinitializer", "-1", "4"]  # all lanes; the current rounding mode
    on.emitter.declare(f"{function}({', '.join(types)})")
    return on.emitter.emit(f"call {function}({', '.join(f'{t} {v}' for t, v in zip(types, values, strict=True))})")


def _has_scale_instruction(on: Lanes) -> bool:
    return on.emitter.target.has_avx512 and on.lanes * (32 if on.dtype == "f32" else 64) == 512


def scaled(on: Lanes, p: str, n: Rounded) -> str:
    """p * 2^n, rounded once, for p in [1/2, 2] and any n between the smallest denormal's exponent and overflow's."""
    if _has_scale_instruction(on):
        return _scale_instruction(on, p, n.value)
    # 2^n itself may be no normal number: half the exponent first, which is exact, then the rest.
    half = round_to_integer(on, n.value, 0.5)
    rest = on.bits(on.add(on.sub(n.value, half.value), on.constant(on.format.shifter)))
    return on.mul(on.mul(p, power_of_two(on, half)), power_of_two(on, Rounded(n.value, rest)))


def _reduced(on: Lanes, x: str) -> tuple[Rounded, str]:
    """n and r with x = n ln(2) + r, |r| at most ln(2)/2 and a little."""
    constants = CONSTANTS[on.dtype]
    n = round_to_integer(on, x, LOG2_E)
    r = on.fma(n.value, on.constant(-constants.ln2_high), x)
    return n, on.fma(n.value, on.constant(-constants.ln2_low), r)


def _exp_of_reduced(on: Lanes, r: str) -> str:
    q = on.polynomial(CONSTANTS[on.dtype].polynomial, r)
    return on.add(on.fma(on.mul(r, r), q, r), on.constant(1.0))


def exp(on: Lanes, x: str) -> str:
    """e^x: at most 1 ulp of fp32, 0.65 of fp64 (0.8 of denormals); inf above 88.72 (709.78), gradual underflow to 0."""
    constants = CONSTANTS[on.dtype]
    bounded = on.at_least(on.at_most(x, constants.overflow), constants.underflow)
    if on.dtype == "f64":
        return _exp_double(on, bounded)
    n, r = _reduced(on, bounded)
    return scaled(on, _exp_of_reduced(on, r), n)


def _exp_double(on: Lanes, x: str) -> str:
    """The same with what the roundings of r and of 1 + r lose, which is added to the small terms."""
    constants = CONSTANTS["f64"]
    one, low = on.constant(1.0), on.constant(-constants.ln2_low)
    n = round_to_integer(on, x, LOG2_E)
    exact = on.fma(n.value, on.constant(-constants.ln2_high), x)
    r = on.fma(n.value, low, exact)
    lost = on.fma(n.value, low, on.sub(exact, r))
    tail = on.fma(on.mul(r, r), on.polynomial(constants.polynomial, r), lost)
    sum_ = on.add(one, r)
    return scaled(on, on.add(sum_, on.add(on.sub(r, on.sub(sum_, one)), tail)), n)


def exp2(on: Lanes, x: str) -> str:
    """2^x in fp32: at most 2 ulp, exact at integers."""
    if _has_scale_instruction(on):
        # It takes every exponent: huge ones overflow, and p * 2^inf is inf, p * 2^-inf 0 even where p is no number, as
        # it is then (inf - inf). Without bounds 7 cycles a vector on Zen 4 instead of 11.
        whole = on.intrinsic("roundeven", x)
        return _scale_instruction(on, _exp2_of_reduced(on, on.sub(x, whole)), whole)
    bounded = on.at_least(on.at_most(x, 129.0), -151.0)
    n = round_to_integer(on, bounded, 1.0)
    return scaled(on, _exp2_of_reduced(on, on.sub(bounded, n.value)), n)


def _exp2_of_reduced(on: Lanes, r: str) -> str:
    return on.fma(r, on.polynomial(coefficients.EXP2_F32, r), on.constant(1.0))


def tanh(on: Lanes, x: str) -> str:
    """The hyperbolic tangent in fp32: at most 2 ulp."""
    size = on.magnitude(x)
    square = on.mul(x, x)
    near = on.fma(on.mul(size, square), on.polynomial(coefficients.TANH_F32, square), size)
    # 1 - 2 / (e^2|x| + 1); past 9.02 that is 1, and up to there 2^n is a normal number.
    twice = on.at_most(on.add(size, size), 20.0)
    n, r = _reduced(on, twice)
    power = on.mul(_exp_of_reduced(on, r), power_of_two(on, n))
    one = on.constant(1.0)
    far = on.sub(one, on.div(on.constant(2.0), on.add(power, one)))
    is_near = on.compare("olt", size, on.constant(0.625))
    return on.with_sign(on.select(is_near, near, far), x)
