"""The gamma function's logarithm and the derivatives of that, in fp64 whatever the dtype of the operand.

Each is an asymptotic series of numbers that are large enough; smaller ones are brought there by a recurrence, and those
below 1/2 by a reflection (Abramowitz and Stegun, Handbook of Mathematical Functions, 6.3, 6.4 and 6.1.40).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, floating, maps

aten = torch.ops.aten

BERNOULLI = tuple(
    float(Fraction(number))
    for number in "1/6 -1/30 1/42 -1/30 5/66 -691/2730 7/6 -3617/510 43867/798 -174611/330".split()
)
"""The numbers of Bernoulli of even order, from the second on."""

MOST_DERIVATIVES = 8
"""Higher ones would need a longer series."""


def _sum_of_powers(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c[0] + c[1] x + c[2] x^2 + ..."""
    *rest, last = coefficients
    total = op.full((), last, x.dtype)
    for coefficient in reversed(rest):
        total = op.add(op.mul(total, x), coefficient)
    return total


def _reflected(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether a number is below 1/2, 1 - x of those and x of the others, and how far x is from an integer."""
    is_below = op.lt(x, 0.5)
    return is_below, op.where(is_below, op.sub(1.0, x), x), op.sub(x, op.round(x))


@maps(aten.lgamma.default)
def lgamma(x: Tensor, *, wanted: Wanted) -> Tensor:
    if wanted.dtype.itemsize > 4:
        raise Unsupported("results of 64 bits, of which few would be right where they are nearly 0")
    wide = floating(x).to("float64")
    is_below, large, rest = _reflected(wide)
    steps, is_small = 8, op.lt(large, 8.0)
    product = large
    for step in range(1, steps):
        product = op.mul(product, op.add(large, float(step)))
    y = op.where(is_small, op.add(large, float(steps)), large)
    series = [number / (2 * k * (2 * k - 1)) for k, number in enumerate(BERNOULLI, 1)]
    inverse = op.div(1.0, y)
    found = op.mul(op.sub(y, 0.5), op.sub(op.log(y), 1.0))
    found = op.add(found, 0.5 * math.log(2 * math.pi) - 0.5)
    found = op.add(found, op.mul(inverse, _sum_of_powers(op.mul(inverse, inverse), series)))
    found = op.sub(found, op.where(is_small, op.log(product), 0.0))
    mirrored = op.sub(op.log(op.div(math.pi, op.abs(op.sin(op.mul(rest, math.pi))))), found)
    result = op.where(is_below, mirrored, found)
    return op.where(op.eq(op.abs(wide), math.inf), math.inf, result).to(wanted.dtype)


@maps(aten.digamma.default)
def digamma(x: Tensor, *, wanted: Wanted) -> Tensor:
    wide = floating(x).to("float64")
    is_below, large, rest = _reflected(wide)
    rest = op.where(op.lt(op.abs(wide), 0.5), wide, rest)  # with the sign of a zero
    steps, is_small = 10, op.lt(large, 10.0)
    sums = op.div(1.0, large)
    for step in range(1, steps):
        sums = op.add(sums, op.div(1.0, op.add(large, float(step))))
    y = op.where(is_small, op.add(large, float(steps)), large)
    inverse = op.div(1.0, y)
    square = op.mul(inverse, inverse)
    series = [number / (2 * k) for k, number in enumerate(BERNOULLI, 1)]
    found = op.sub(op.sub(op.log(y), op.mul(inverse, 0.5)), op.mul(square, _sum_of_powers(square, series)))
    found = op.sub(found, op.where(is_small, sums, 0.0))
    mirrored = op.sub(found, op.div(math.pi, op.tan(op.mul(rest, math.pi))))
    is_pole = op.logical_and(op.lt(wide, 0.0), op.eq(rest, 0.0))
    result = op.where(is_below, op.where(is_pole, math.nan, mirrored), found)
    return result.to(wanted.dtype)


@maps(aten.polygamma.default)
def polygamma(n: int, x: Tensor, *, wanted: Wanted) -> Tensor:
    if n == 0:
        return digamma(x, wanted=wanted)
    if n > MOST_DERIVATIVES:
        raise Unsupported("a derivative of that order")
    if n == 1 and x.dtype.kind != "float":
        raise Unsupported("integers, of which the negative ones are poles that torch has finite numbers for")
    wide = floating(x).to("float64")
    is_below, large, rest = _reflected(wide)
    steps = 12 + n
    sums = _power(op.div(1.0, large), n + 1)
    for step in range(1, steps):
        sums = op.add(sums, _power(op.div(1.0, op.add(large, float(step))), n + 1))
    inverse = op.div(1.0, op.add(large, float(steps)))
    square, lead = op.mul(inverse, inverse), _power(inverse, n)
    series = [number * math.factorial(2 * k + n - 1) / math.factorial(2 * k) for k, number in enumerate(BERNOULLI, 1)]
    tail = op.add(op.mul(inverse, math.factorial(n) / 2), op.mul(square, _sum_of_powers(square, series)))
    tail = op.mul(lead, op.add(tail, float(math.factorial(n - 1))))
    sign = 1.0 if n % 2 else -1.0
    found = op.mul(op.add(op.mul(sums, float(math.factorial(n))), tail), sign)
    cotangent = op.div(1.0, op.tan(op.mul(rest, math.pi)))
    slope = op.mul(_sum_of_powers(cotangent, _cotangent_slope(n)), math.pi ** (n + 1))
    result = op.where(is_below, op.sub(op.mul(found, -sign), slope), found)
    if n > 1:  # as torch has them
        result = op.where(op.eq(wide, -math.inf), sign * math.inf, op.where(op.eq(wide, math.inf), math.nan, result))
    return result.to(wanted.dtype)


def _power(x: Tensor, exponent: int) -> Tensor:
    """x multiplied by itself."""
    made = x
    for _ in range(exponent - 1):
        made = op.mul(made, x)
    return made


def _cotangent_slope(order: int) -> list[float]:
    """The coefficients of the derivative of cot, in powers of cot: each is -(1 + c^2) times that of the one before."""
    found = [0.0, 1.0]
    for _ in range(order):
        slope = [place * coefficient for place, coefficient in enumerate(found)][1:]
        found = [0.0] * (len(slope) + 2)
        for place, coefficient in enumerate(slope):
            found[place] -= coefficient
            found[place + 2] -= coefficient
    return found
