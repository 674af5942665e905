"""sin and cos of fp32, computed in fp64 and rounded once: at most 0.51 ulp.

The argument is reduced to [-pi/2, pi/2] by Cody and Waite's method (Software Manual for the Elementary Functions, 1980,
chapter 8) with pi as the sum of two doubles, so that 106 bits of it count: for |x| up to 2^40 what is left has 40 good
bits. Beyond that libm's functions of doubles, which have all the digits, are called lane by lane.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.lanes import FORMATS, Lanes

PI_HIGH: Final = 3.141592653589793
PI_LOW: Final = 1.2246467991473532e-16
INVERSE_PI: Final = 0.3183098861837907
REACH: Final = 2.0**40
"""Up to this magnitude the expansions are good."""


def _sine(on: Lanes, double: Lanes, x: str, moved: str, turns: str) -> str:
    """(-1)^k sin(x - turns pi), of doubles; k is the last bit of `moved`."""
    back = double.neg(turns)
    r = double.fma(back, double.constant(PI_LOW), double.fma(back, double.constant(PI_HIGH), x))
    value = double.mul(r, double.polynomial((1.0, *coefficients.SIN_WIDE), double.mul(r, r)))
    sign = double.on_bits("shl", double.bits(moved), 63)
    signed = double.emitter.emit(f"xor {double.bits_type} {double.bits(value)}, {sign}")
    return double.converted(double.from_bits(signed), "f32")[1]


def sin(on: Lanes, x: str) -> str:
    """The sine for |x| up to `REACH`."""
    double, wide = on.converted(x, "f64")
    shifter = double.constant(FORMATS["f64"].shifter)
    moved = double.fma(wide, double.constant(INVERSE_PI), shifter)
    return _sine(on, double, wide, moved, double.sub(moved, shifter))


def cos(on: Lanes, x: str) -> str:
    """The cosine for |x| up to `REACH`: (-1)^k sin(r) with x = (k - 1/2) pi + r."""
    double, wide = on.converted(x, "f64")
    shifter, half = double.constant(FORMATS["f64"].shifter), double.constant(0.5)
    moved = double.add(double.fma(wide, double.constant(INVERSE_PI), half), shifter)
    return _sine(on, double, wide, moved, double.sub(double.sub(moved, shifter), half))
