"""What sizes have to be for computations with them to go as they went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from tessera.lazy.symbols.integers import SymbolicInt
from tessera.lazy.symbols.polynomials import (
    Atom,
    Frozen,
    Size,
    Terms,
    frozen,
    negative,
    normal,
    sum_of,
    sum_terms,
)

LEAST: Final = 2
"""Sizes from which on one is symbolic: 0 and 1 decide code, as `symbolic.py` has it."""


class Assumptions:
    """What sizes have to be for computations with them to go as they went."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.zeros: dict[Frozen, bool] = {}
        """Polynomials that were compared with 0, and whether they are it."""
        self.least: dict[Frozen, int] = {}
        """By polynomial without a constant, what it has to be at least."""
        self._pinned: set[int] = set()
        self.values: list[int] = []
        self._bounds: list[int | None] = []
        self._numbers: dict[Atom, int] = {}
        self._given: Assumptions | None = None

    def size(self, value: int) -> Any:
        """The next of the sizes given, at least `LEAST`, as a number to compute with."""
        return self.atom(Size(self.size_count), value, LEAST)

    @property
    def size_count(self) -> int:
        """How many sizes are given."""
        return sum(isinstance(atom, Size) for atom in self.atoms)

    def atom(self, atom: Atom, value: int, bound: int | None) -> SymbolicInt:
        """The number that an atom is; `bound` is what it is at least, where that is known."""
        number = self._numbers.setdefault(atom, len(self.atoms))
        if number == len(self.atoms):
            self.atoms.append(atom)
            self.values.append(value)
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
        key = normal(number.terms)
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
        self.zeros[normal(sum_terms(number.terms, {(): -number.value} if number.value else {}))] = True
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
        found.values = [self._atom_value(atom, sizes) for atom in self.atoms]
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
        return SymbolicInt(self, number.terms, sum_of(number.terms, self.values))

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
