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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

Monomial: TypeAlias = tuple[int, ...]
"""The numbers of the atoms that are multiplied, in order; none for a constant."""

Terms: TypeAlias = Mapping[Monomial, int]
"""A polynomial: by monomial a coefficient that is not 0."""

Frozen: TypeAlias = tuple[tuple[Monomial, int], ...]
"""The terms of a polynomial in order."""

LEAST: Final = 2
"""Sizes from which on one is symbolic: 0 and 1 decide code, as `symbolic.py` has it."""


class Quotient(NamedTuple):
    """An atom: the quotient of two polynomials, rounded down."""

    dividend: Frozen
    divisor: Frozen


class Size(NamedTuple):
    """An atom: the size of this number among those given, at least `LEAST`."""

    number: int


Atom: TypeAlias = Size | Quotient


class Assumptions:
    """What sizes have to be for computations with them to go as they went."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.zeros: dict[Frozen, bool] = {}
        """Polynomials that were compared with 0, and whether they are it."""
        self.least: dict[Frozen, int] = {}
        """By polynomial without a constant, what it has to be at least."""
        self._pinned: set[int] = set()
        self._values: list[int] = []
        self._bounds: list[int | None] = []
        self._numbers: dict[Atom, int] = {}
        self._given: Assumptions | None = None

    def size(self, value: int) -> Any:
        """The next of the sizes given, at least `LEAST`, as a number to compute with."""
        count = sum(isinstance(atom, Size) for atom in self.atoms)
        return self.atom(Size(count), value, LEAST)

    def atom(self, atom: Atom, value: int, bound: int | None) -> SymbolicInt:
        """The number that an atom is; `bound` is what it is at least, where that is known."""
        number = self._numbers.setdefault(atom, len(self.atoms))
        if number == len(self.atoms):
            self.atoms.append(atom)
            self._values.append(value)
            self._bounds.append(bound)
        return SymbolicInt(self, {(number,): 1}, value)

    def lower_bound(self, terms: Terms) -> int | None:
        """What a polynomial is at least, where that is known without another condition."""
        constant = terms.get((), 0)
        varying = frozen({monomial: factor for monomial, factor in terms.items() if monomial})
        known = self.least.get(varying)
        found = None if known is None else known + constant
        total = constant
        for monomial, factor in varying:
            bounds = [self._bounds[atom] for atom in monomial]
            if factor < 0 or any(bound is None for bound in bounds):
                return found
            total += factor * math.prod([bound or 0 for bound in bounds])
        return total if found is None else max(found, total)

    def is_zero(self, number: SymbolicInt) -> bool:
        """Whether the number is 0, now and under the conditions."""
        negated = negative(number.terms)
        if any((self.lower_bound(terms) or 0) > 0 for terms in (number.terms, negated)):
            return False
        key = _normal(number.terms)
        return self.zeros.setdefault(key, number.value == 0)

    def is_negative(self, number: SymbolicInt) -> bool:
        """Whether the number is below 0, now and under the conditions."""
        low = self.lower_bound(number.terms)
        if low is not None and low >= 0:
            return False
        negated = negative(number.terms)
        high = self.lower_bound(negated)
        if high is not None and high > 0:
            return True
        # Of integers, x < 0 is -x - 1 >= 0.
        terms, beyond = (negated, 1) if number.value < 0 else (number.terms, 0)
        varying = frozen({monomial: factor for monomial, factor in terms.items() if monomial})
        limit = beyond - terms.get((), 0)
        self.least[varying] = max(limit, self.least.get(varying, limit))
        return number.value < 0

    def pin(self, number: SymbolicInt) -> int:
        """The value, which the number has to have."""
        self.zeros[_normal(_sum(number.terms, {(): -number.value} if number.value else {}))] = True
        self._pinned.update(*[monomial for monomial in number.terms if len(monomial) == 1])
        return number.value

    @property
    def is_pinned(self) -> bool:
        """Whether no other sizes meet the conditions, as far as that is seen."""
        return all(place in self._pinned for place, atom in enumerate(self.atoms) if isinstance(atom, Size))

    def at(self, sizes: Sequence[int]) -> Assumptions:
        """The same for other sizes, which meet the conditions: what is found out from now on is further conditions."""
        found = Assumptions()
        found.atoms, found._bounds, found._numbers = list(self.atoms), list(self._bounds), dict(self._numbers)
        found._values = [self._atom_value(atom, sizes) for atom in self.atoms]
        found.zeros, found.least, found._given = dict(self.zeros), dict(self.least), self
        found._pinned = set(self._pinned)
        return found

    @property
    def is_further(self) -> bool:
        """Whether there are conditions that are given."""
        return self._given is not None

    def conditions(self) -> tuple[dict[Frozen, bool], dict[Frozen, int]]:
        """`zeros` and `least`, without those that are given."""
        given = self._given
        if given is None:
            return self.zeros, self.least
        zeros = {terms: is_zero for terms, is_zero in self.zeros.items() if terms not in given.zeros}
        return zeros, {terms: least for terms, least in self.least.items() if given.least.get(terms) != least}

    def rebased(self, number: Any) -> Any:
        """A number of the assumptions that these are for other sizes, with those."""
        if type(number) is not SymbolicInt:
            return number
        return SymbolicInt(self, number.terms, sum_of(number.terms, self._values))

    def evaluated(self, number: Any, sizes: Sequence[int]) -> int:
        """What a number is for other sizes."""
        if type(number) is not SymbolicInt:
            return int(number)
        return self._evaluated(number.terms.items(), sizes)

    def _evaluated(self, terms: Any, sizes: Sequence[int]) -> int:
        return sum(
            factor * math.prod([self._atom_value(self.atoms[atom], sizes) for atom in monomial])
            for monomial, factor in terms
        )

    def _atom_value(self, atom: Atom, sizes: Sequence[int]) -> int:
        if isinstance(atom, Size):
            return sizes[atom.number]
        return self._evaluated(atom.dividend, sizes) // self._evaluated(atom.divisor, sizes)


class SymbolicInt:
    """An integer that depends on sizes, whose value is known as well. It passes for an `int`."""

    __slots__ = ("_key", "assumptions", "terms", "value")

    def __init__(self, assumptions: Assumptions, terms: Terms, value: int) -> None:
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
        return self._made(_sum(self.terms, terms), self.value + value)

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
        return self._made(_product(self.terms, terms), self.value * value)

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
                left = _without(each, monomial)
                if left is not None and times % factor == 0:
                    exact[left] = times // factor
                    del rest[each]
        left_over = value - sum_of(exact, self.assumptions._values) * by
        whole = self._made(exact, (value - left_over) // by)
        if not rest:
            return whole
        if len(divisor) == 1 and () in divisor:
            if len(rest) == 1 and () in rest:
                return whole + rest[()] // by
            if all(factor < 0 for monomial, factor in rest.items() if monomial):
                # floor(-x / c) is -floor((x + c - 1) / c): of what is not negative more is known.
                return whole - self._quotient(_sum(negative(rest), {(): by - 1}), by - 1 - left_over, divisor, by)
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


def frozen(terms: Terms) -> Frozen:
    """The terms in order."""
    return tuple(sorted(terms.items()))


def negative(terms: Terms) -> Terms:
    """The terms of the negative."""
    return {monomial: -factor for monomial, factor in terms.items()}


def sum_of(terms: Terms, values: Sequence[int]) -> int:
    """The value of a polynomial, of the atoms' values."""
    return sum(factor * math.prod([values[atom] for atom in monomial]) for monomial, factor in terms.items())


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


def _sum(one: Terms, other: Terms) -> Terms:
    found = dict(one)
    for monomial, factor in other.items():
        total = found.get(monomial, 0) + factor
        if total:
            found[monomial] = total
        else:
            found.pop(monomial, None)
    return found


def _product(one: Terms, other: Terms) -> Terms:
    found: dict[Monomial, int] = {}
    for left, times in one.items():
        for right, factor in other.items():
            monomial = tuple(sorted(left + right)) if left and right else left or right
            total = found.get(monomial, 0) + times * factor
            if total:
                found[monomial] = total
            else:
                found.pop(monomial, None)
    return found


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial divided by another; None where that leaves a remainder."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _normal(terms: Terms) -> Frozen:
    """The terms of what is 0 where these are."""
    divisor = math.gcd(*terms.values())
    found = frozen(terms)
    sign = -1 if found[-1][1] < 0 else 1
    return tuple([(monomial, sign * factor // divisor) for monomial, factor in found])
