"""Symbolic sizes: what is computed with them is, for all sizes that meet the conditions, what it is with plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.symbols.functions import holds, numbers_of
from tessera.lazy.symbols.integers import is_symbolic, plain, value_of

STEPS = ("add", "subtract", "times", "quotient", "rest", "up", "larger", "smaller", "branch", "bits", "float", "index")
SIZES = st.tuples(st.integers(2, 70), st.integers(2, 70))


def computed(steps: Sequence[tuple[str, int, int]], a: int, b: int) -> list[int]:
    """A program over two sizes: each step makes a number of earlier ones."""
    values = [a, b, 3, 64]
    for step, left, right in steps:
        x, y = values[left % len(values)], values[right % len(values)]
        values.append(made(step, x, y))
    return values


def made(step: str, x: Any, y: Any) -> Any:
    match step:
        case "add":
            return x + y
        case "subtract":
            return 7 - x if y == 3 else x - y
        case "times":
            return x * y if -1000 < x < 1000 and -1000 < y < 1000 else 1
        case "quotient":
            return x // y if y != 0 else x
        case "rest":
            return x % y if y else 5
        case "up":
            return -(-x // 16) * 16
        case "larger":
            return max(x, y)
        case "smaller":
            return min(x, y, key=lambda each: -each)
        case "branch":
            return 1 if x >= y + 2 else 2 if x in (y, 0, 1) else x * 2
        case "bits":
            return 1 << (x - 1).bit_length() if 1 < x < 1000 else 0
        case "float":
            return x + 1 if x < 12.5 else x + 2 if x >= 20.25 else x
        case _:
            return sum(range(x)) if 0 < x < 50 else y


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.integers(0, 30)), max_size=12), SIZES, SIZES)
def test_other_sizes_that_meet_the_conditions_give_the_same_program(
    steps: list[tuple[str, int, int]], sizes: tuple[int, int], others: tuple[int, int]
) -> None:
    assumptions = Assumptions()
    found = computed(steps, *[assumptions.size(size) for size in sizes])
    assert [value_of(each) for each in found] == computed(steps, *sizes)

    is_met, numbers = holds(assumptions), numbers_of(assumptions, found)
    assert is_met(*sizes)
    assert list(numbers(*sizes)) == computed(steps, *sizes)
    if is_met(*others):
        assert list(numbers(*others)) == computed(steps, *others)
        assert [assumptions.evaluated(each, others) for each in found] == computed(steps, *others)


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)), max_size=6))
def test_further_conditions_are_those_beyond_what_is_given(
    sizes: tuple[int, int], others: tuple[int, int], steps: list[tuple[str, int, int]]
) -> None:
    assumptions = Assumptions()
    a, b = (assumptions.size(size) for size in sizes)
    area, is_wide = a * b, a > b
    if holds(assumptions)(*others):
        further = assumptions.at(others)
        found = computed(steps, *[further.rebased(each) for each in (a, area)])
        assert [value_of(each) for each in found] == computed(steps, others[0], others[0] * others[1])
        assert holds(further)(*others)
        assert is_wide == (others[0] > others[1])


def test_what_is_the_same_of_all_sizes_is_no_condition() -> None:
    assumptions = Assumptions()
    a, b = assumptions.size(5), assumptions.size(9)
    assert a != 1
    assert b > 0
    assert a * b == b * a
    assert (a * 64 * b) // b == a * 64
    assert (a * 64 + 17) % 64 == 17
    assert (a + b) * 4 - 4 * b == a * 4
    assert not assumptions.zeros
    assert not assumptions.least
    assert holds(assumptions)(1000, 2)
    assert not holds(assumptions)(1, 2)  # sizes of 0 and 1 are others


def test_what_arithmetic_does_not_follow_has_to_be_the_same() -> None:
    for take in (float, str, lambda size: size / 2, lambda size: [0] * size, lambda size: size & 3):
        assumptions = Assumptions()
        size = assumptions.size(12)
        assert not is_symbolic(take(size))
        assert assumptions.is_pinned
        assert holds(assumptions)(12)
        assert not holds(assumptions)(13)


def test_a_number_of_sizes_is_under_itself_alone_in_a_table() -> None:
    assumptions = Assumptions()
    a, b = assumptions.size(6), assumptions.size(6)
    table = {(a * 2, 1): "twice"}
    assert (12, 1) not in table
    assert (b * 2, 1) not in table
    assert table[a + a, 1] == "twice"
    assert isinstance(a, int)
    assert plain(a) == 6


def test_division_by_what_is_0_is_an_error() -> None:
    assumptions = Assumptions()
    a, b = assumptions.size(4), assumptions.size(4)
    with pytest.raises(ZeroDivisionError):
        _ = a // (a - b)
    assert not holds(assumptions)(5, 4)
