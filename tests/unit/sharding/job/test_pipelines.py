"""Running pipelines: stages on real processes give what one process gives, and a lost rank is named."""

from __future__ import annotations

import pytest

from tests.mesh.pipelined import SCHEDULES
from tests.unit.sharding.job.nursery import Nursery
from tests.unit.sharding.job.test_faults import SOON_S


@pytest.mark.parametrize(("transport", "manner"), [("shared", "plain"), ("gloo", "tuples")])
def test_every_schedule_on_ranks_equals_one_process(forks: Nursery, transport: str, manner: str) -> None:
    cases = [[name, chunks, manner] for name, chunks in SCHEDULES]
    outcome = forks.run(2, "pipelined", axes={"pp": 2}, cases=cases, transport=transport)

    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(2)] == [[{"count": len(cases)}]] * 2


def test_four_stages_and_stages_on_parts_of_a_mesh(forks: Nursery) -> None:
    four = forks.run(4, "pipelined", axes={"pp": 4}, cases=[["interleaved", 2, "plain"], ["zero-bubble", 1, "tuples"]])
    parts = [["1f1b", 1, "sharded"], ["zero-bubble", 1, "sharded"]]
    meshes = ({"dp": 2, "pp": 2, "tp": 1}, {"dp": 1, "pp": 2, "tp": 2})
    both = [forks.run(4, "pipelined", axes=axes, cases=parts) for axes in meshes]

    for outcome in (four, *both):
        assert outcome.code == 0, outcome.err
        assert [outcome.said(rank) for rank in range(4)] == [[{"count": 2}]] * 4


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_lost_in_a_step_is_named_by_all(forks: Nursery, victim: int) -> None:
    outcome = forks.run(3, "pipeline_killed", victim=victim)

    (killed,) = outcome.said(victim)
    for rank in {0, 1, 2} - {victim}:
        (told,) = outcome.said(rank)
        assert told["code"] == "E_RANK_LOST"
        assert f"rank {victim}" in told["message"]
        assert told["at"] - killed["at"] < SOON_S


def test_ranks_that_mean_other_messages_exchange_nothing(forks: Nursery) -> None:
    outcome = forks.run(2, "pipeline_of_two_programs")

    told = [each["code"] for rank in range(2) for each in outcome.said(rank)]
    assert told == ["E_COLLECTIVE_MISMATCH"] * 2, outcome.err
