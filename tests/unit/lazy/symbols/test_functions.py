"""Code of conditions and numbers."""

from __future__ import annotations

from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.symbols.functions import holds, numbers_where


def test_numbers_are_given_where_the_conditions_hold() -> None:
    assumptions = Assumptions()
    n, m = assumptions.size(12), assumptions.size(5)
    assert n > m
    assert n % 4 == 0
    find, is_met = numbers_where(assumptions, ((n * m, -(-n // 8)), None, [m, 7])), holds(assumptions)
    assert find(12, 5) == ((60, 2), None, (5, 7))
    assert find(16, 3) == ((48, 2), None, (3, 7))
    for sizes in ((5, 12), (10, 5), (4, 1), (0, 0), (1, 1)):
        assert not is_met(*sizes)
        assert find(*sizes) is None


def test_further_conditions_alone_are_asked_where_others_are_given() -> None:
    given = Assumptions()
    n = given.size(12)
    assert n < 100
    further = given.at([24])
    assert further.rebased(n) * 2 > 40
    assert holds(further)(200)
    assert not holds(further)(20)
