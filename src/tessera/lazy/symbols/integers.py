"""Integers that stand for sizes: computing with them notes what the sizes have to be for it to go the same way.

A computation over sizes that are given as `SymbolicInt` gives numbers that are polynomials of them, and every
comparison on the way becomes a condition of `Assumptions`. For other sizes that meet the conditions the computation
would have gone the same way, so its numbers are those polynomials of the other sizes (`functions.py` makes code of
both).

What arithmetic cannot follow, as a conversion to a float or an index, takes the number itself, and notes that the
size has to be this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tessera.lazy.symbols.polynomials import (
    Atom,
    Frozen,
    Monomial,
    Quotient,
    Terms,
    frozen,
    negative,
    product_terms,
    sum_of,
    sum_terms,
    without,
)


class Notes(Protocol):
    """What integers ask of the `Assumptions` that they belong to, which note what is asked."""

    @property
    def values(self) -> Sequence[int]:
        """The values of the atoms, by number."""

    def atom(self, atom: Atom, value: int, bound: int | None) -> SymbolicInt:
        """The number that an atom is; `bound` is what it is at least, where that is known."""

    def lower_bound(self, terms: Terms) -> int | None:
        """What a polynomial is at least, where that is known without another condition."""

    def is_zero(self, number: SymbolicInt) -> bool:
        """Whether the number is 0, now and under the conditions."""

    def is_negative(self, number: SymbolicInt) -> bool:
        """Whether the number is below 0, now and under the conditions."""

    def pin(self, number: SymbolicInt) -> int:
        """The value, which the number has to have."""


class SymbolicInt:
    """An integer that depends on sizes, whose value is known as well. It passes for an `int`."""

    __slots__ = ("_key", "assumptions", "terms", "value")

    def __init__(self, assumptions: Notes, terms: Terms, value: int) -> None:
        self.assumptions, self.terms, self.value = assumptions, terms, value
        self._key: Frozen | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int

    def __hash__(self) -> int:
        """By what it is of the sizes: a table made for numbers has nothing under it but what was put there for it."""
        if self._key is None:
            self._key = frozen(self.terms)
        return hash((id(self.assumptions), self._key))

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        terms, value = _parts(other)
        if terms is None:
            return self.pinned() + other
        return self._made(sum_terms(self.terms, terms), self.value + value)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self._made(negative(self.terms), -self.value)

    def __pos__(self) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        terms, value = _parts(other)
        if terms is None:
            return self.pinned() * other
        return self._made(product_terms(self.terms, terms), self.value * value)

    __rmul__ = __mul__

    def __pow__(self, exponent: Any) -> Any:
        found: Any = 1
        if type(exponent) is not int or not 0 <= exponent <= 8:
            return self.pinned() ** exponent
        for _ in range(exponent):
            found = found * self
        return found

    def __floordiv__(self, other: Any) -> Any:
        terms, value = _parts(other)
        return self.pinned() // other if terms is None else self._quotient(self.terms, self.value, terms, value)

    def __rfloordiv__(self, other: Any) -> Any:
        terms, value = _parts(other)
        return other // self.pinned() if terms is None else self._quotient(terms, value, self.terms, self.value)

    def __mod__(self, other: Any) -> Any:
        return self - (self // other) * other

    def __rmod__(self, other: Any) -> Any:
        return other - (other // self) * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def _made(self, terms: Terms, value: int) -> Any:
        if not terms or (len(terms) == 1 and () in terms):
            return value
        return SymbolicInt(self.assumptions, terms, value)

    def _quotient(self, terms: Terms, value: int, divisor: Terms, by: int) -> Any:
        """floor(terms / divisor): exactly where each term is divisible, else with an atom for the rest."""
        if not divisor:
            raise ZeroDivisionError("integer division or modulo by zero")
        if () in divisor and len(divisor) == 1 and by < 0:
            return self._quotient(negative(terms), -value, negative(divisor), -by)
        if any(divisor):
            self._refuse_zero(divisor, by)
        exact: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = dict(terms)
        if len(divisor) == 1:
            ((monomial, factor),) = divisor.items()
            for each, times in terms.items():
                left = without(each, monomial)
                if left is not None and times % factor == 0:
                    exact[left] = times // factor
                    del rest[each]
        left_over = value - sum_of(exact, self.assumptions.values) * by
        whole = self._made(exact, (value - left_over) // by)
        if not rest:
            return whole
        if len(divisor) == 1 and () in divisor:
            if len(rest) == 1 and () in rest:
                return whole + rest[()] // by
            if all(factor < 0 for monomial, factor in rest.items() if monomial):
                # floor(-x / c) is -floor((x + c - 1) / c): of what is not negative more is known.
                return whole - self._quotient(sum_terms(negative(rest), {(): by - 1}), by - 1 - left_over, divisor, by)
        assumptions = self.assumptions
        low, least = assumptions.lower_bound(rest), assumptions.lower_bound(divisor)
        bound = 0 if low is not None and low >= 0 and least is not None and least > 0 else None
        return whole + assumptions.atom(Quotient(frozen(rest), frozen(divisor)), left_over // by, bound)

    def _refuse_zero(self, divisor: Terms, by: int) -> None:
        if self._made(divisor, by) == 0:
            raise ZeroDivisionError("integer division or modulo by zero")

    # -- comparisons ----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, float):
            return other.is_integer() and self == int(other)
        if not _is_integer(other):
            return False
        difference: Any = self - other
        return self.assumptions.is_zero(difference) if type(difference) is SymbolicInt else difference == 0

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        if isinstance(other, float) and math.isfinite(other):
            other = math.ceil(other)  # of integers, x < 2.5 is x < 3
        if not _is_integer(other):
            return bool(self.pinned() < other)
        difference: Any = self - other
        return self.assumptions.is_negative(difference) if type(difference) is SymbolicInt else difference < 0

    def __le__(self, other: Any) -> bool:
        if isinstance(other, float) and math.isfinite(other):
            other = math.floor(other)
        return self < other + 1 if _is_integer(other) else bool(self.pinned() <= other)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return not self.assumptions.is_zero(self)

    def bit_length(self) -> int:
        """As that of an `int`: the size has to have as many bits."""
        bits = self.value.bit_length()
        assert self >= (1 << bits) >> 1 and self < 1 << bits
        return bits

    # -- what pins the value --------------------------------------------------------------------------------------

    def pinned(self) -> int:
        """The value, which the number has to have from now on."""
        return self.assumptions.pin(self)

    def __index__(self) -> int:
        return self.pinned()

    __int__ = __trunc__ = __floor__ = __ceil__ = __index__

    def __float__(self) -> float:
        return float(self.pinned())

    def __str__(self) -> str:
        return str(self.pinned())

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.pinned(), spec)

    def __reduce__(self) -> Any:
        return int, (self.pinned(),)


def _pinning(name: str) -> Callable[..., Any]:
    def operate(self: SymbolicInt, *others: Any) -> Any:
        return getattr(self.pinned(), name)(*[plain(other) for other in others])

    return operate


for _name in (
    "truediv",
    "rtruediv",
    "lshift",
    "rlshift",
    "rshift",
    "rrshift",
    "and",
    "rand",
    "or",
    "ror",
    "xor",
    "rxor",
):
    setattr(SymbolicInt, f"__{_name}__", _pinning(f"__{_name}__"))
for _name in ("__rpow__", "__invert__", "__round__"):
    setattr(SymbolicInt, _name, _pinning(_name))


def plain(number: Any) -> Any:
    """A number as it is without sizes: a symbolic one has to have its value."""
    return number.pinned() if type(number) is SymbolicInt else number


def value_of(number: Any) -> int:
    """The value of a number that may be symbolic, without a condition."""
    return int(number.value) if type(number) is SymbolicInt else int(number)


def is_symbolic(number: object) -> bool:
    """Whether a number depends on sizes."""
    return type(number) is SymbolicInt


def identity(number: Any) -> Frozen | int:
    """What numbers are told apart by without a condition: of a symbolic one what it is of the sizes."""
    return frozen(number.terms) if type(number) is SymbolicInt else int(number)


def symbolic_in(values: Any) -> Iterator[SymbolicInt]:
    """The symbolic numbers in nested sequences."""
    for value in values:
        if type(value) is SymbolicInt:
            yield value
        elif isinstance(value, tuple | list):
            yield from symbolic_in(value)


def _is_integer(other: object) -> bool:
    return type(other) is SymbolicInt or isinstance(other, int)


def _parts(other: Any) -> tuple[Terms | None, int]:
    if type(other) is SymbolicInt:
        return other.terms, other.value
    if isinstance(other, int):
        return ({(): int(other)} if other else {}), int(other)
    return None, 0
