"""Functions of scores, as exact as a softmax needs them: its exponentials err by 2 ulp of fp32, and so may these.

    tanh(x) = x P(x^2) / Q(x^2), |x| <= 8:   P and Q of degree 4, found by reweighted least squares; relative error
                                             2^-27, and 2.9 * 2^-23 with the rounding of each operation

A soft-cap is evaluated for every score. The tanh of kernels at large takes three times the instructions, for it is
exact to half a unit, or to 2 of them beside an exponential.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from tessera.dtypes import fp32
from tessera.scheduling.language.expression import Recorder, Value

BOUND: Final = 8.0
"""From here on the tanh of fp32 is 1 to the last bit."""
NUMERATOR: Final = (1.0, 0.1344449520111084, 0.00357159529812634, 2.189461883972399e-05, 1.523035741968215e-08)
DENOMINATOR: Final = (1.0, 0.4677782356739044, 0.026164432987570763, 0.00034112876164726913, 8.52242180826579e-07)


@dataclass(frozen=True)
class Tanh:
    """What a tanh is made of: its argument between the bounds, the square of that, and the denominator."""

    x: Value
    square: Value
    denominator: Value


class ScoreFunctions(Recorder):
    """A recorder of what becomes of scores."""

    def __init__(self, reduced: str | None) -> None:
        super().__init__(reduced)
        self._tanhs: dict[Value, Tanh] = {}

    def exp(self, a: Value, *, approximate: bool = False) -> Value:
        return super().exp(a, approximate=True)

    def erf(self, a: Value, *, approximate: bool = False) -> Value:
        return super().erf(a, approximate=True)

    def tanh(self, a: Value, *, approximate: bool = False) -> Value:
        if a.dtype is not fp32:
            return super().tanh(a)
        high, low = self.constant(BOUND, a), self.constant(-BOUND, a)
        below = self.select(self.compare("lt", high, a), high, a)  # NaN stays NaN
        x = self.select(self.compare("lt", below, low), low, below)
        square = self.mul(x, x)
        made_of = Tanh(x, square, self._polynomial([self.constant(each, x) for each in DENOMINATOR], square))
        found = self._quotient(made_of, [self.constant(each, x) for each in NUMERATOR])
        self._tanhs[found] = made_of
        return found

    def _quotient(self, tanh: Tanh, numerator: Sequence[Value]) -> Value:
        above = self.mul(tanh.x, self._polynomial(numerator, tanh.square))
        return self.make("div", (above, tanh.denominator))

    def div(self, a: Value, b: Value) -> Value:
        """A quotient; of one divisor for all keys a product with its inverse."""
        if a.dtype.kind == "float" and "k" in a.axes and "k" not in b.axes:
            return self.mul(a, super().div(self.constant(1.0, b), b))
        return super().div(a, b)

    def _polynomial(self, coefficients: Sequence[Value], x: Value) -> Value:
        return reduce(lambda sum_, term: self.make("fma", (sum_, x, term)), reversed(coefficients))

    def times(self, a: Value, number: float) -> Value:
        """A product with a number, which joins a factor that is the same for all keys: of a tanh, its coefficients."""
        constant = self.constant(number, a)
        if a.operation == "mul":
            for own, other in (a.arguments, a.arguments[::-1]):
                if own in self._tanhs and not other.axes:
                    factor = self.mul(other, constant)
                    coefficients = [self.mul(factor, self.constant(each, own)) for each in NUMERATOR]
                    return self._quotient(self._tanhs[own], coefficients)
                if "k" not in other.axes:
                    return self.mul(own, self.mul(other, constant))
        return self.mul(a, constant)
