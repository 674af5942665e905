"""Polynomials of sizes with integer coefficients, and of quotients of such, rounded down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

Monomial: TypeAlias = tuple[int, ...]
"""The numbers of the atoms that are multiplied, in order; none for a constant."""

Terms: TypeAlias = Mapping[Monomial, int]
"""A polynomial: by monomial a coefficient that is not 0."""

Frozen: TypeAlias = tuple[tuple[Monomial, int], ...]
"""The terms of a polynomial in order."""


class Quotient(NamedTuple):
    """An atom: the quotient of two polynomials, rounded down."""

    dividend: Frozen
    divisor: Frozen


class Size(NamedTuple):
    """An atom: the size of this number among those given, at least `LEAST`."""

    number: int


Atom: TypeAlias = Size | Quotient


def frozen(terms: Terms) -> Frozen:
    """The terms in order."""
    return tuple(sorted(terms.items()))


def negative(terms: Terms) -> Terms:
    """The terms of the negative."""
    return {monomial: -factor for monomial, factor in terms.items()}


def sum_of(terms: Terms, values: Sequence[int]) -> int:
    """The value of a polynomial, of the atoms' values."""
    return sum(factor * math.prod([values[atom] for atom in monomial]) for monomial, factor in terms.items())


def sum_terms(one: Terms, other: Terms) -> Terms:
    """The terms of a sum."""
    found = dict(one)
    for monomial, factor in other.items():
        total = found.get(monomial, 0) + factor
        if total:
            found[monomial] = total
        else:
            found.pop(monomial, None)
    return found


def product_terms(one: Terms, other: Terms) -> Terms:
    """The terms of a product."""
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


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial divided by another; None where that leaves a remainder."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def normal(terms: Terms) -> Frozen:
    """The terms of what is 0 where these are."""
    divisor = math.gcd(*terms.values())
    found = frozen(terms)
    sign = -1 if found[-1][1] < 0 else 1
    return tuple([(monomial, sign * factor // divisor) for monomial, factor in found])
