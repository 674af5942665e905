"""Collectives of real processes give what emulation gives: every one, by both transports, of all dtypes and shapes."""

from __future__ import annotations

import pytest

from tests.unit.sharding.job.nursery import Nursery
from tests.unit.sharding.job.work import TRANSPORTS

SEQUENCES = 40
"""Of the thousand that `python -m tests.unit.sharding.job.sequences` checks."""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_equals_emulation(forks: Nursery, ranks: int, transport: str) -> None:
    outcome = forks.run(ranks, "collectives", transport=transport)

    assert outcome.code == 0, outcome.err
    (counts,) = {tuple(told["count"] for told in outcome.said(rank)) for rank in range(ranks)}
    assert counts[0] > (1000 if transport == "shared" else 500)


def test_random_sequences_started_and_ended_out_of_order_equal_emulation(forks: Nursery) -> None:
    outcome = forks.run(4, "random_sequences", seed=0, count=SEQUENCES)

    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(4)] == [[{"count": SEQUENCES}]] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_of_one_shape_may_be_under_way_together(forks: Nursery, transport: str) -> None:
    outcome = forks.run(2, "alike", transport=transport)

    assert outcome.code == 0, outcome.err
    sums = [[3.0] * 3, [21.0] * 3, [201.0] * 3]
    assert [outcome.said(rank) for rank in range(2)] == [[{"found": [sums, sums]}]] * 2


def test_groups_may_overlap_be_in_another_order_and_be_one_rank(forks: Nursery) -> None:
    outcome = forks.run(4, "subgroups")

    assert outcome.code == 0, outcome.err
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    for rank, pair in enumerate(pairs):
        of_pair, alone, everyone = [float(sum(pair)), list(pair)], [float(rank), [rank]], [6.0, [3, 2, 1, 0]]
        assert outcome.said(rank) == [{"found": [of_pair, of_pair, alone, alone, everyone, everyone]}]


def test_a_group_has_one_communicator_in_shared_memory(forks: Nursery) -> None:
    outcome = forks.run(2, "asked_in_words")

    assert outcome.code == 0, outcome.err
    # The first group is there already; of the second two lanes are mapped, by a descriptor each.
    told = {"found": [[2.0, 2.0]] * 4, "same": True, "kept": 2}
    assert [outcome.said(rank) for rank in range(2)] == [[told]] * 2


def test_operands_that_peers_read_in_place_may_be_written_to_afterwards(forks: Nursery) -> None:
    outcome = forks.run(3, "symmetric")

    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(3)] == [[{"size": 100_000}], [{"size": 0}], [{"size": 0}]]


def test_a_ring_brings_what_direct_messages_bring(forks: Nursery) -> None:
    outcome = forks.run(4, "ring")

    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(4)] == [[{"extents": [3, 0, 2, 5]}]] * 4
