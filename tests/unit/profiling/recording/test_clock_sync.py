"""The offset between two clocks, from instants of one round."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.recording import clock_sync
from tessera.profiling.recording.clock_sync import ClockOffset, offset_of

DELAYS = st.integers(0, 10**9)


@pytest.fixture
def no_offsets() -> Iterator[None]:
    """Clocks that were never compared, before and after."""
    clock_sync.forget()
    yield
    clock_sync.forget()


@given(st.integers(-(10**15), 10**15), DELAYS, DELAYS, DELAYS)
def test_the_offset_is_right_within_its_uncertainty_however_uneven_the_way(
    true_offset: int, there: int, pause: int, back: int
) -> None:
    sent = 5_000_000
    received = sent + there + true_offset
    answered = received + pause
    returned = answered + back - true_offset
    offset, uncertainty = offset_of(sent, received, answered, returned)
    assert abs(offset - true_offset) <= uncertainty
    assert uncertainty <= (there + back) / 2 + 1


def test_an_even_way_gives_the_offset_itself() -> None:
    assert offset_of(0, 150, 160, 110) == (100, 51)


@pytest.mark.usefixtures("no_offsets")
def test_traces_are_told_the_exchange_nearest_to_their_beginning() -> None:
    assert clock_sync.told(0, 0) == (None, None)
    clock_sync._offsets.extend([ClockOffset(100, 7, 3, 1000), ClockOffset(900, 9, 2, 1000)])
    # Begun at 800 of this clock, 809 of rank 0's, which its wall clock calls 1809.
    assert clock_sync.told(800, 1500) == (309, 2)
    assert clock_sync.told(50, 1057) == (0, 3)
