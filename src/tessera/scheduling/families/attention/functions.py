"""Functions of scores, as exact as a softmax needs them: its exponentials err by 2 ulp of fp32, and so may these.

    tanh(x) = x P(x^2) / Q(x^2), |x| <= 8:   P of degree 5, Q of degree 3; 2.6 units in the last place of 1 + x with the
                                             rounding of each operation, 2^-25.6 without (least squares, reweighted)

A soft-cap is evaluated for every score. The tanh of kernels at large takes three times the instructions, for it is
exact to half a unit, or to 2 of them beside an exponential.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from tessera.dtypes import fp32
from tessera.scheduling.language.expression import Recorder, Value

BOUND: Final = 8.0
"""From here on the tanh of fp32 is 1 to the last bit."""
NUMERATOR: Final = (
    1.0,
    0.12979307770729065,
    0.002985952887684107,
    9.879498065856751e-06,
    -1.4706778017625766e-08,
    2.3515321634359765e-11,
)
DENOMINATOR: Final = (1.0, 0.4631262421607971, 0.024028297513723373, 0.00023721586330793798)


class ScoreFunctions(Recorder):
    """A recorder of what becomes of scores."""

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
        numerator, denominator = (self._polynomial(each, square) for each in (NUMERATOR, DENOMINATOR))
        return self.div(self.mul(x, numerator), denominator)

    def div(self, a: Value, b: Value) -> Value:
        """A quotient; of one divisor for all keys a product with its inverse."""
        if a.dtype.kind == "float" and "k" in a.axes and "k" not in b.axes:
            return self.mul(a, super().div(self.constant(1.0, b), b))
        return super().div(a, b)

    def _polynomial(self, coefficients: tuple[float, ...], x: Value) -> Value:
        terms = [self.constant(each, x) for each in reversed(coefficients)]
        return reduce(lambda sum_, term: self.add(self.mul(sum_, x), term), terms)

    def times(self, a: Value, number: float) -> Value:
        """A product with a number, which joins a factor that is the same for all keys."""
        constant = self.constant(number, a)
        if a.operation == "mul":
            for own, other in (a.arguments, a.arguments[::-1]):
                if "k" not in other.axes:
                    return self.mul(own, self.mul(other, constant))
        return self.mul(a, constant)
