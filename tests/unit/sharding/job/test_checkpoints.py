"""Checkpoints of running meshes: any number of ranks reads what any other wrote, and a lost rank leaves the old one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sharding.job.nursery import Nursery
from tests.unit.sharding.job.test_faults import SOON_S


def test_ranks_read_what_another_number_of_ranks_wrote(forks: Nursery, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    saved = forks.run(4, "checkpoint_saved", folder=kept, shape=[2, 2], seed=3)
    assert saved.code == 0, saved.err
    for shape in ([1, 1], [2, 1], [1, 3], [4, 1]):
        outcome = forks.run(shape[0] * shape[1], "checkpoint_loaded", folder=kept, shape=shape, seed=3)
        assert outcome.code == 0, outcome.err
    again = forks.run(3, "checkpoint_saved", folder=kept, shape=[3, 1], seed=5)
    assert again.code == 0, again.err
    outcome = forks.run(2, "checkpoint_loaded", folder=kept, shape=[1, 2], seed=5)
    assert outcome.code == 0, outcome.err
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("victim", range(4))
def test_a_rank_killed_while_it_saves_leaves_the_old_checkpoint_whole(
    forks: Nursery, tmp_path: Path, victim: int
) -> None:
    kept = str(tmp_path / "kept")
    forks.run(2, "checkpoint_saved", folder=kept, shape=[2, 1], seed=3)
    broken = forks.run(4, "checkpoint_saved", folder=kept, shape=[2, 2], seed=9, victim=victim)

    (killed,) = broken.said(victim)
    for rank in set(range(4)) - {victim}:
        told = broken.said(rank)[-1]
        assert told["code"] == "E_RANK_LOST", broken.err
        assert told["message"].startswith(f"rank {victim} ")
        assert told["at"] - killed["at"] < SOON_S
    outcome = forks.run(2, "checkpoint_loaded", folder=kept, shape=[1, 2], seed=3)
    assert outcome.code == 0, outcome.err
    assert outcome.said(1)[0]["step"] == 3
