"""Placing temporaries: no two that are alive at once may overlap, and the arena stays near the lower bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.runtime.memory.liveness import ALIGNMENT, ArenaLayout, Lifetime, place, round_up

LIFETIMES = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=30,
)


def lower_bound(lifetimes: list[Lifetime]) -> int:
    """Bytes alive at the busiest step, sizes rounded up to the alignment: no layout can be smaller."""
    steps = {lifetime.first for lifetime in lifetimes}
    return max(
        (sum(round_up(each.nbytes) for each in lifetimes if each.first <= step <= each.last) for step in steps),
        default=0,
    )


@given(LIFETIMES)
def test_temporaries_alive_at_once_do_not_overlap(lifetimes: list[Lifetime]) -> None:
    layout = place(lifetimes)
    placed = list(zip(lifetimes, layout.offsets, strict=True))
    for index, (one, at) in enumerate(placed):
        assert at % ALIGNMENT == 0
        assert at + one.nbytes <= layout.nbytes
        for other, other_at in placed[index + 1 :]:
            alive_together = one.first <= other.last and other.first <= one.last
            overlap = at < other_at + other.nbytes and other_at < at + one.nbytes
            assert not (alive_together and overlap)


@given(LIFETIMES)
def test_arena_lies_between_the_lower_bound_and_the_sum(lifetimes: list[Lifetime]) -> None:
    total = place(lifetimes).nbytes
    assert lower_bound(lifetimes) <= total <= sum(round_up(each.nbytes) for each in lifetimes)


def test_chain_needs_two_buffers_whatever_its_length() -> None:
    chain = [Lifetime(1000, step, step + 1) for step in range(100)]
    assert place(chain).nbytes == 2 * round_up(1000)


def test_nothing_to_place_takes_no_memory() -> None:
    assert place([]) == ArenaLayout((), 0)


@pytest.mark.parametrize("lifetime", [Lifetime(64, 3, 2), Lifetime(-1, 0, 1)])
def test_impossible_lifetimes_are_refused(lifetime: Lifetime) -> None:
    with pytest.raises(ValueError, match="not a lifetime"):
        place([lifetime])
