"""erf by one polynomial: without a branch, an exponential or a division.

The eighth root of erfc falls almost linearly from 1 to 0.1 on [0, 3.93]. One minus it, s, is x times a short
polynomial, and erf = 1 - (1 - s)^8. Squaring 1 - s would round away what is small near 0; doubling s does not, because
1 - (1 - s)^2 = 2 s - s^2 loses nothing. The slope of s at 0 is the sum of an fp32 number and a small rest, so that no
rounding of it remains.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.lanes import Lanes

SATURATED: Final = 3.93  # from here on erf rounds to 1 in fp32
SLOPE: Final = 0.141047403216362  # 1 / (4 sqrt(pi)) in fp32
DOUBLINGS: Final = 3


def one_less_eighth_power(on: Lanes, s: str) -> str:
    """1 - (1 - s)^8."""
    for _ in range(DOUBLINGS):
        s = on.fma(on.neg(s), s, on.add(s, s))
    return s


def erf(on: Lanes, x: str) -> str:
    """The error function in fp32: at most 3.5 ulp, below half an ulp on average, and never above 1.

    Of arguments below 2^-122: at most 3.5 ulp or 2^-146, because an eighth of the result may be a denormal.
    """
    size = on.at_most(on.magnitude(x), SATURATED)
    rest = on.mul(size, on.polynomial(coefficients.ERF_F32, size))
    return on.with_sign(one_less_eighth_power(on, on.fma(size, on.constant(SLOPE), rest)), x)
