"""Running meshes: real processes give what one process gives."""

from __future__ import annotations

import json

import pytest

from tests.unit.sharding.job.nursery import Nursery


def test_drawn_expressions_equal_one_process(forks: Nursery) -> None:
    outcome = forks.run(4, "mesh_cases", first=5000, count=60)

    assert outcome.code == 0, outcome.err
    ((told,), *others) = [outcome.said(rank) for rank in range(4)]
    assert others == [[told]] * 3
    assert told["count"] >= 5


def test_a_step_of_training_is_the_same_on_one_rank_and_on_four(forks: Nursery) -> None:
    one, four = forks.run(1, "mesh_step"), forks.run(4, "mesh_step")

    assert (one.code, four.code) == (0, 0), four.err
    (told,) = four.said(3)
    (alone,) = map(json.loads, one.out.splitlines())  # of one rank no number is printed
    assert {**alone, "layout": "-, tp"} == told
    assert told["after"] < told["before"]


def test_functions_of_shards_are_what_torch_says(forks: Nursery) -> None:
    for shape in ([2, 2], [4, 1]):
        outcome = forks.run(4, "mesh_regions", shape=shape)
        assert outcome.code == 0, outcome.err
        assert [outcome.said(rank) for rank in range(4)] == [[{"faults": []}]] * 4


def test_experts_and_transforms_equal_one_process(forks: Nursery) -> None:
    outcome = forks.run(2, "mesh_experts")
    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(2)] == [[{"faults": []}]] * 2


def test_streams_keep_the_order_of_collectives(forks: Nursery) -> None:
    outcome = forks.run(2, "mesh_streams", count=4)
    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(2)] == [[{"found": True, "count": 8}]] * 2


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_overlap_and_buckets_change_no_bit(forks: Nursery, transport: str) -> None:
    outcome = forks.run(4, "mesh_overlap", transport=transport)
    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(4)] == [[{"same": [True] * 4}]] * 4


def test_tensors_of_torch_on_meshes_share_memory_both_ways(forks: Nursery) -> None:
    outcome = forks.run(4, "dtensors")

    assert outcome.code == 0, outcome.err
    for rank in range(4):
        (told,) = outcome.said(rank)
        # Ranks 0 and 2, and 1 and 3, hold the parts of a sum along "dp".
        assert told["totals"] == [{0: 4.0, 1: 6.0}[rank % 2]] * 3
        assert told["layout"] == "- | add dp"
        assert told["codes"] == ["E_MESH", "E_MESH", "E_MESH", "E_GRAD_DETACHED"]


def test_the_example_learns_alike_on_one_rank_and_on_four(forks: Nursery) -> None:
    one, four = (forks.run(ranks, "example_trained", steps=3) for ranks in (1, 4))

    assert (one.code, four.code) == (0, 0), four.err
    (alone,) = map(json.loads, one.out.splitlines())
    told = [outcome["losses"] for rank in range(4) for outcome in four.said(rank)]
    assert told == [told[0]] * 4
    assert told[0] == pytest.approx(alone["losses"], rel=1e-5)
    assert told[0][-1] < told[0][0]
