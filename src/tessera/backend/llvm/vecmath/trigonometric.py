"""sin and cos in fp32, reduced in double.

The argument is reduced to [-pi/4, pi/4] by Cody and Waite's method (Software Manual for the Elementary Functions, 1980,
chapter 8) with pi/2 as the sum of two doubles, so that 106 bits of it count: for |x| up to 2^40 what is left is as
exact as fp32 can hold. Beyond, digits of pi are missing: results stay within [-1, 1] and mean nothing.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.lanes import FORMATS, Lanes

TWO_OVER_PI: Final = 0.6366197723675814
HALF_PI_HIGH: Final = 1.5707963267948966
HALF_PI_LOW: Final = 6.123233995736766e-17
LARGEST: Final = 0.79  # a little more than what reduction leaves of an argument that it can reduce


def _reduced(on: Lanes, x: str) -> tuple[str, str]:
    """r and the bits of k with x = k pi/2 + r, |r| <= pi/4; the bits end in those of k."""
    double, wide = on.converted(x, "f64")
    shifter = double.constant(FORMATS["f64"].shifter)
    moved = double.fma(wide, double.constant(TWO_OVER_PI), shifter)
    turns = double.neg(double.sub(moved, shifter))
    rest = double.fma(turns, double.constant(HALF_PI_HIGH), wide)
    rest = double.fma(turns, double.constant(HALF_PI_LOW), rest)
    _, single = double.converted(rest, "f32")
    bits = on.emitter.emit(f"trunc {double.bits_type} {double.bits(moved)} to {on.bits_type}")
    return on.at_least(on.at_most(single, LARGEST), -LARGEST), bits


def _quadrant(on: Lanes, r: str, quarter: str) -> str:
    """sin(r + quarter pi/2), of a number of quarter turns of which the last two bits count."""
    square = on.mul(r, r)
    sine = on.fma(on.mul(r, square), on.polynomial(coefficients.SIN_F32, square), r)
    sine = on.with_sign(sine, r)  # the sum of zeros of both signs is +0
    tail = on.mul(on.mul(square, square), on.polynomial(coefficients.COS_F32, square))
    cosine = on.add(on.fma(square, on.constant(-0.5), tail), on.constant(1.0))
    odd = on.emitter.emit(f"icmp ne {on.bits_type} {on.on_bits('and', quarter, 1)}, {on.bits_constant(0)}")
    value = on.select(odd, cosine, sine)
    sign = on.on_bits("shl", on.on_bits("and", quarter, 2), 30)
    return on.from_bits(on.emitter.emit(f"xor {on.bits_type} {on.bits(value)}, {sign}"))


def sin(on: Lanes, x: str) -> str:
    """The sine in fp32: at most 1.6 ulp for |x| up to 2^40."""
    r, quarter = _reduced(on, x)
    return _quadrant(on, r, quarter)


def cos(on: Lanes, x: str) -> str:
    """The cosine in fp32: at most 1.6 ulp for |x| up to 2^40."""
    r, quarter = _reduced(on, x)
    return _quadrant(on, r, on.on_bits("add", quarter, 1))
