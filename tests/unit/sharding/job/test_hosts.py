"""Ranks on several hosts are one mesh. A namespace of processes is as good as a host: nobody sees into another one."""

from __future__ import annotations

import pytest
import torch

from tests.unit.sharding.job.nursery import Nursery, may_go_apart

pytestmark = pytest.mark.skipif(not may_go_apart(), reason="this user may not have namespaces of processes")


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


def test_what_ends_on_another_host_ends_the_wait(forks: Nursery) -> None:
    # Under torchrun nobody tells the ranks of one host how those of another one ended.
    alone = {"launcher": None}
    outcome = forks.run(3, "killed", alone, apart=[2], victim=2, place="compute", transport="auto")

    assert outcome.codes == [1, 1, -9]
    for rank in range(2):
        told = outcome.said(rank)[-1]
        assert told["code"] in ("E_LIBRARY", "E_RANK_LOST"), told  # its connections closed, or the other rank ended so
