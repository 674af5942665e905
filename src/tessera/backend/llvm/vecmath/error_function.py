"""erf in fp32 without an exponential and without a division.

The eighth root of erfc falls almost linearly from 0.8 to 0.1 on [1, 3.93], so a short polynomial and three squarings
give erfc there, to an absolute error below half an ulp of erf. Near 0 erf is x plus x times a small polynomial in x^2.
"""

from __future__ import annotations

from tessera.backend.llvm.vecmath import coefficients
from tessera.backend.llvm.vecmath.lanes import Lanes

SATURATED = 3.93  # from here on erf rounds to 1 in fp32


def erf(on: Lanes, x: str) -> str:
    """The error function in fp32: at most 2 ulp."""
    size = on.magnitude(x)
    square = on.mul(x, x)
    near = on.fma(x, on.polynomial(coefficients.ERF_NEAR_F32, square), x)
    root = on.polynomial(coefficients.ERF_FAR_F32, on.at_most(size, SATURATED))
    power = on.mul(root, root)
    power = on.mul(power, power)
    far = on.with_sign(on.fma(on.neg(power), power, on.constant(1.0)), x)
    return on.select(on.compare("olt", size, on.constant(1.0)), near, far)
