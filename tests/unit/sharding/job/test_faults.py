"""What goes wrong with a rank, every other rank says by name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sharding.job.nursery import Nursery, Outcome
from tests.unit.sharding.job.work import MISMATCHES, TRANSPORTS
from tests.whole import some

RANKS = 4
PLACES = ("before", "compute", "barrier", "exchange")
SOON_S = 20.0
"""Survivors raise long before they are out of patience (300 s): within a second on a machine that has the time, which
a test cannot ask of one that has not.
"""


def survivors(outcome: Outcome, victim: int) -> tuple[float, list[dict[str, Any]]]:
    """When the victim was lost, and what each survivor raised."""
    (lost,) = outcome.said(victim)
    raised = [outcome.said(rank)[-1] for rank in range(len(outcome.codes)) if rank != victim]
    return lost["at"], raised


def check_killed(forks: Nursery, place: str, victim: int, transport: str, within_s: float = SOON_S) -> None:
    """A rank is killed at a place of its program: all others say so within so long, and all end."""
    outcome = forks.run(RANKS, "killed", victim=victim, place=place, transport=transport)

    lost_at, raised = survivors(outcome, victim)
    for each in raised:
        assert each["code"] == "E_RANK_LOST"
        assert each["message"].startswith(f"rank {victim} ")
        assert "was killed by SIGKILL" in each["message"]
        assert "tests/unit/sharding/job/work.py" in each["where"]
        assert each["at"] - lost_at < within_s
    last = ", before its first collective" if place == "before" else "; its last collective was number "
    assert all(last in each["message"] for each in raised)
    assert outcome.code == 137
    assert outcome.codes == [-9 if rank == victim else 1 for rank in range(RANKS)]
    assert f"tessera run: rank {victim} (pid " in outcome.err


@pytest.mark.parametrize(("place", "victim"), some(product(PLACES, range(RANKS)), lambda case: case[0]))
def test_every_survivor_names_a_killed_rank(forks: Nursery, place: str, victim: int) -> None:
    check_killed(forks, place, victim, TRANSPORTS[(victim + (place == "exchange")) % 2])


def check_stopped_for_good(forks: Nursery, transport: str, timeout_s: float) -> None:
    """A stopped rank is named by warnings, and is an error only when patience ends. Its process ends, too."""
    outcome = forks.run(3, "stopped_for_good", victim=1, transport=transport, timeout_s=timeout_s)

    assert outcome.codes == [1, -9, 1]
    assert outcome.said(1) == []
    told = [outcome.said(rank)[-1] for rank in (0, 2)]
    # Who has waited long enough first says so to all, who may not have warned by then.
    warned = [each["warned"][0] for each in told if each["warned"]]
    assert warned
    for warning in warned:
        assert warning.startswith("rank 1 has not answered for ")
        assert "(its process is stopped)" in warning
        assert float(warning.split()[6]) < 1.0 + SOON_S
    assert max(each["waited"] for each in told) > timeout_s
    for each in told:
        assert each["code"] == "E_COLLECTIVE_STALLED"
        assert "rank 1 (pid " in each["message"]


def test_a_stopped_rank_is_lost_only_when_patience_ends(forks: Nursery) -> None:
    check_stopped_for_good(forks, "shared", 3.0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stopped_rank_is_named_by_a_warning_and_may_go_on(forks: Nursery, transport: str) -> None:
    outcome = forks.run(RANKS, "stopped", victim=1, transport=transport)

    assert outcome.code == 0, outcome.err
    told = [outcome.said(rank)[0] for rank in range(RANKS)]
    assert [each["total"] for each in told] == [[RANKS] * 3] * RANKS
    assert not told[1]["warned"]
    first = told[2]["warned"][0]
    assert first.startswith("rank 1 has not answered for ")
    assert "(its process is stopped); rank 2 waits in collective 1, all_reduce sum of 3 float32" in first


def check_mismatch(forks: Nursery, kind: str, transport: str) -> None:
    """One of three ranks comes with another collective: all say which two there are."""
    outcome = forks.run(3, "mismatched", kind=kind, transport=transport)

    assert outcome.codes == [1, 1, 1]
    for rank in range(3):
        (told,) = outcome.said(rank)
        assert told["code"] == "E_COLLECTIVE_MISMATCH"
        assert "collective 1 of ranks 0, 1, 2 is " in told["message"]
        assert " on rank 2" in told["message"]


@pytest.mark.parametrize(("kind", "transport"), some(product(MISMATCHES, TRANSPORTS), lambda case: case[0]))
def test_other_collectives_exchange_nothing_and_are_named_on_both_sides(
    forks: Nursery, kind: str, transport: str
) -> None:
    check_mismatch(forks, kind, transport)


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_mismatch(forks: Nursery) -> None:
    outcome = forks.run(2, "crossed")

    told = [outcome.said(rank)[0] for rank in range(2)]
    assert [each["code"] for each in told] == ["E_COLLECTIVE_MISMATCH"] * 2
    assert any("of another group on rank" in each["message"] for each in told)


def test_an_exception_is_relayed_before_its_process_ends(forks: Nursery) -> None:
    outcome = forks.run(3, "raising", victim=1)

    raised_at, raised = survivors(outcome, 1)
    for each in raised:
        assert each["code"] == "E_RANK_LOST"
        assert "raised ValueError: no more data; its last collective was number 0, barrier" in each["message"]
        assert each["at"] - raised_at < SOON_S
    assert "exit code 1" in outcome.err
    assert ": ValueError: no more data; then ranks 0, 2 ended" in outcome.err


def test_a_missing_rank_is_named_with_its_stack(forks: Nursery) -> None:
    outcome = forks.run(3, "missing", victim=1, transport="shared", leaves=False)

    for rank in (0, 2):
        (told,) = outcome.said(rank)
        assert told["code"] == "E_COLLECTIVE_STALLED"
        assert "rank 1 (pid " in told["message"]
        assert any("lost_in_thought" in hint for hint in told["hints"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_whose_program_has_ended_is_not_waited_for(forks: Nursery, transport: str) -> None:
    outcome = forks.run(3, "missing", victim=1, transport=transport, leaves=True)

    assert outcome.codes == [1, 0, 1]
    for rank in (0, 2):
        (told,) = outcome.said(rank)
        assert told["code"] == "E_COLLECTIVE_STALLED"
        assert "rank 1 (pid " in told["message"]
        assert "has ended its program" in told["message"]


def test_a_fork_of_a_rank_has_no_job(forks: Nursery) -> None:
    outcome = forks.run(2, "forked")

    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank) for rank in range(2)] == [[{"child": "E_FORKED E_FORKED", "total": 2.0}]] * 2


def test_two_threads_in_one_group_are_refused(forks: Nursery, tmp_path: Path) -> None:
    outcome = forks.run(2, "two_threads", folder=str(tmp_path))

    assert outcome.code == 0, outcome.err
    assert [outcome.said(rank)[0]["code"] for rank in range(2)] == ["E_COLLECTIVE_ORDER", None]
