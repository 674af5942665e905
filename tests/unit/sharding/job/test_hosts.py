"""Ranks on several hosts are one mesh. A namespace of processes is as good as a host: nobody sees into another one. So
is a name of a host, where ranks take no notice of what they might see.
"""

from __future__ import annotations

import subprocess

import pytest
import torch

from bench import shaped_link
from tests.unit.sharding.job.nursery import Nursery, may_go_apart
from tests.unit.sharding.job.test_faults import SOON_S

apart = pytest.mark.skipif(not may_go_apart(), reason="this user may not have namespaces of processes")
ALONE = {"launcher": None}
"""Under torchrun nobody tells the ranks of one host how those of another one ended."""


@apart
def test_ranks_of_two_hosts_join_one_mesh(forks: Nursery) -> None:
    outcome = forks.run(3, "on_hosts", apart=[2])

    assert outcome.code == 0, outcome.err
    whole = torch.arange(21.0).remainder(5).reshape(7, 3) - 2
    for rank in range(3):
        (told,) = outcome.said(rank)
        assert told["local"] == ([0, 1] if rank < 2 else [2])
        assert told["found"] == [["gloo", 6.0], ["shared", 3.0]][: 2 if rank < 2 else 1]
        assert told["total"] == ((whole @ whole.T) ** 2).sum().item()
        assert told["same"]


@apart
def test_what_ends_on_another_host_is_named(forks: Nursery) -> None:
    outcome = forks.run(3, "killed", ALONE, apart=[2], victim=2, place="compute", transport="auto")

    assert outcome.codes == [1, 1, -9]
    (lost,) = outcome.said(2)
    for rank in range(2):
        told = outcome.said(rank)[-1]
        assert told["code"] == "E_RANK_LOST", told
        assert told["message"].startswith("rank 2 (pid "), told
        assert told["at"] - lost["at"] < SOON_S


@pytest.mark.parametrize(("victim", "place"), [(0, "barrier"), (3, "exchange")])
def test_all_hosts_hear_how_a_rank_ended_from_those_beside_it(forks: Nursery, victim: int, place: str) -> None:
    outcome = forks.run(4, "killed", ALONE, hosts="aabb", victim=victim, place=place, transport="auto")

    (lost,) = outcome.said(victim)
    told = [outcome.said(rank)[-1] for rank in range(4) if rank != victim]
    for each in told:
        assert each["code"] == "E_RANK_LOST"
        assert each["message"].startswith(f"rank {victim} (pid ")
        assert "; its last collective was number " in each["message"]
        assert each["at"] - lost["at"] < SOON_S


def test_other_collectives_on_another_host_are_named(forks: Nursery) -> None:
    outcome = forks.run(3, "mismatched", ALONE, hosts="aab", kind="shape", transport="auto")

    told = [outcome.said(rank)[0] for rank in range(3)]
    assert [each["code"] for each in told] == ["E_COLLECTIVE_MISMATCH"] * 3
    assert all("collective 1 of ranks 0, 1, 2 is " in each["message"] for each in told)


def test_a_missing_rank_of_another_host_is_named_with_its_stack(forks: Nursery) -> None:
    outcome = forks.run(3, "missing", ALONE, hosts="abb", victim=2, transport="gloo", leaves=False)

    for rank in (0, 1):
        (told,) = outcome.said(rank)
        assert told["code"] == "E_COLLECTIVE_STALLED"
        assert "rank 2 (pid " in told["message"]
        assert any("lost_in_thought" in hint for hint in told["hints"])


def test_a_rank_of_another_host_that_left_or_raised_says_so(forks: Nursery) -> None:
    left = forks.run(3, "missing", ALONE, hosts="aab", victim=2, transport="gloo", leaves=True)
    raised = forks.run(3, "raising", ALONE, hosts="aab", victim=2)

    for rank in (0, 1):
        (told,) = left.said(rank)
        assert told["code"] == "E_COLLECTIVE_STALLED"
        assert "has ended its program" in told["message"]
        told = raised.said(rank)[-1]
        assert told["code"] == "E_RANK_LOST"
        assert "raised ValueError: no more data; its last collective was number 0, barrier" in told["message"]


def test_a_stopped_rank_of_another_host_is_not_lost_before_patience_ends(forks: Nursery) -> None:
    outcome = forks.run(3, "stopped_for_good", hosts="aab", victim=2, transport="gloo", timeout_s=3.0)

    told = [outcome.said(rank)[-1] for rank in (0, 1)]
    assert [each["code"] for each in told] == ["E_COLLECTIVE_STALLED"] * 2
    warned = [each["warned"][0] for each in told if each["warned"]]
    assert warned
    assert all(warning.startswith("rank 2 has not answered for ") for warning in warned)
    assert max(each["waited"] for each in told) > 3.0


def test_a_step_is_waited_for_in_the_next_one(forks: Nursery) -> None:
    outcome = forks.run(2, "left_steps", ALONE, hosts="ab")

    assert outcome.code == 0, outcome.err
    for rank in range(2):
        (told,) = outcome.said(rank)
        assert told["same"] == [True] * 4
        assert told["under_way"] > 0
        assert told["schedule"][0].startswith("wait for results of programs before: ")
        assert "here the program ends; who first reads a result does what it hangs on:" in told["schedule"]
        assert told["same_starts"]
        assert told["waits_behind_starts"]


def test_what_is_left_is_done_before_a_program_ends(forks: Nursery) -> None:
    outcome = forks.run(2, "left_at_the_end", ALONE, hosts="ab")
    assert outcome.code == 0, outcome.err


def test_a_rank_that_dies_meanwhile_is_named_where_its_part_is_read(forks: Nursery) -> None:
    outcome = forks.run(3, "left_by_a_victim", ALONE, hosts="aab", victim=2)

    assert outcome.codes == [1, 1, -9]
    for rank in (0, 1):
        left, read, again = outcome.said(rank)
        assert left["left"]
        assert read["code"] == again["code"] == "E_RANK_LOST"
        assert read["message"].startswith("rank 2 (pid ")
        assert left["old"]  # what was there before is there still


@pytest.mark.skipif(shaped_link.why_not() is not None, reason=f"no namespaces of networks: {shaped_link.why_not()}")
def test_a_host_that_cannot_be_reached_any_more_is_named() -> None:
    command = shaped_link.command(["tests/unit/sharding/job/cut.py"])
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=shaped_link.ROOT, check=False)

    lines = [line.split(maxsplit=3) for line in outcome.stderr.splitlines() if line[:2] in ("0 ", "1 ")]
    assert sorted(line[0] for line in lines) == ["0", "1"], outcome.stderr
    for rank, code, seconds, message in lines:
        assert code == "E_RANK_LOST"
        assert message.startswith(f"rank {1 - int(rank)} (pid ")
        assert "cannot be reached any more" in message
        assert float(seconds) < SOON_S
