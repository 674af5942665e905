"""Two ranks of a real process group (gloo): they tune together, agree, and outlive each other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.trial import Trial
from tessera.tuning.online import agreement
from tessera.tuning.search import ranks
from tessera.tuning.search.ranks import merged
from tests import forked
from tests.unit.tuning.support import OPTIMUM, SPACE, timing

SECONDS = 300.0
"""Much longer than two processes take to start."""

Seen = dict[str, dict[str, Any]]


def free_port() -> str:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(folder: Path, *scenarios: str) -> list[Seen]:
    """Runs scenarios of `rank_job`, which the last may end for one rank; what each rank saw, by scenario."""
    port = free_port()
    program = "from tests.unit.tuning.search.rank_job import main; main()"
    given, imports = [port, str(folder), *scenarios], forked.importing_tests()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(forked.run, program, [str(rank), *given], imports, SECONDS, True) for rank in range(2)]
    seen: list[Seen] = []
    for ended in (each.result() for each in asked):
        assert ended.returncode in (0, 9), ended.stderr
        seen.append({name: value for line in ended.stdout.splitlines() for name, value in json.loads(line).items()})
    return seen


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """Ranks that work together until the second ends."""
    return run(tmp_path_factory.mktemp("both"), "together", "unable", "agreeing", "losing the second")


def test_ranks_split_the_candidates_and_agree_on_one_winner(both: list[Seen]) -> None:
    first, second = (seen["together"] for seen in both)
    assert first["schedule"] == second["schedule"] == str(OPTIMUM)
    assert first["trials"] == second["trials"]
    # Each measures its part, the first of every batch and the finalists.
    assert max(first["asked"], second["asked"]) < first["trials"]
    assert first["asked"] + second["asked"] >= first["trials"]
    assert first["again"] == second["again"] == ["cache", str(OPTIMUM)]
    assert first["model"] == second["model"]
    assert (first["entries"], second["entries"]) == (2, 0)
    assert "candidates failed" in first["failure"]
    assert "candidates failed" in second["failure"]


def test_a_rank_that_cannot_measure_ends_one_tuning_of_all_at_once(both: list[Seen]) -> None:
    first, second = (seen["unable"] for seen in both)
    assert first["failure"] == "rank 1 cannot measure: no measuring process"
    assert first["failure"] in second["failure"]
    assert first["schedule"] == second["schedule"] == str(OPTIMUM)


def test_ranks_of_a_job_run_the_same_schedule_at_every_step(both: list[Seen]) -> None:
    first, second = (seen["agreeing"] for seen in both)
    assert first["used"] == second["used"]
    assert first["used"][0] in (first["first"], second["first"])
    assert first["used"][-1] == str(OPTIMUM)
    assert sorted(["elsewhere" in rank["states"] for rank in (first, second)]) == [False, True]


def test_the_first_rank_goes_on_without_the_second(both: list[Seen]) -> None:
    name = "losing the second"
    first, second = both
    assert name not in second
    assert first[name]["found"] == str(OPTIMUM)


def test_a_rank_that_has_lost_the_first_says_so(tmp_path: Path) -> None:
    first, second = run(tmp_path, "losing the first")
    assert first == {}
    seen = second["losing the first"]
    assert "E_TUNE_FAILED: rank 1 has lost rank 0" in seen["found"]


def test_a_rank_whose_store_is_gone_goes_on_with_what_it_has(tmp_path: Path) -> None:
    first, second = run(tmp_path, "orphaned")
    assert first == {}
    seen = second["orphaned"]
    assert seen["used"][1] == seen["own"]


def by_torchrun(words: Sequence[str]) -> str:
    """What two ranks print that torchrun starts."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tessera"]
    ended = subprocess.run([*torchrun, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def as_by_torchrun(words: Sequence[str]) -> str:
    """The same of two forks, which have the environment that torchrun gives: its processes take 20 s of a processor."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    environments = [
        {**os.environ, **shared, "TORCHELASTIC_RUN_ID": "test", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(2)
    ]
    program = "import sys, torch; torch.set_num_threads(1); from tessera.cli.main import main; main(sys.argv[1:])"
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(forked.run, program, words, each, SECONDS, True) for each in environments]
    ended = [each.result() for each in asked]
    assert [each.returncode for each in ended] == [0, 0], [each.stderr for each in ended]
    return "".join(each.stdout for each in ended)


@pytest.mark.parametrize("launched", [as_by_torchrun, pytest.param(by_torchrun, marks=pytest.mark.whole)])
def test_the_command_line_tunes_with_all_ranks_and_writes_once(
    cache_dir: Path, launched: Callable[[Sequence[str]], str]
) -> None:
    printed = launched(["tune", "softmax", "--shape", "32,64", "--trials", "4"])
    assert printed.count("Best config") == 1
    (winner,) = [path for path in cache_dir.rglob("*.json") if "softmax" in str(path)]
    entry = json.loads(winner.read_text())
    assert (entry["origin"], entry["identity"]["threads"]) == ("measured", 1)
    (trials,) = cache_dir.rglob("*.jsonl")
    assert len(set(trials.read_text().splitlines())) >= entry["trials"]


def test_a_process_that_is_alone_is_no_team() -> None:
    with ranks.team() as team:
        assert team is None
        assert ranks.is_writer()
        assert ranks.decided("mine") == "mine"
    assert agreement.of_this_job() is None


def trials(seconds: Sequence[float | None]) -> list[Trial]:
    """Trials of the first schedules of the space; None for one that crashed."""
    return [
        Trial(schedule, "ok", timing(time)) if time is not None else Trial(schedule, "crashed")
        for schedule, time in zip(SPACE.candidates(), seconds, strict=False)
    ]


def test_trials_of_a_slower_rank_are_scaled_by_what_all_have_measured() -> None:
    schedules: list[Schedule] = list(SPACE.candidates())[:3]
    one, two, three = trials([1.0, 2.0, None]), trials([2.0, None, 3.0]), trials([1.0, None, None])
    parts = [[one[0], one[1]], [two[0], two[2]]]
    assert [trial.seconds for trial in merged(schedules, parts)] == [1.0, 2.0, 1.5]
    assert [trial.outcome for trial in merged(schedules[:1], [[one[0]], [three[0]]])] == ["ok"]


def test_what_failed_on_one_rank_has_failed() -> None:
    schedules: list[Schedule] = list(SPACE.candidates())[:2]
    here, there = trials([1.0, 2.0]), trials([1.0, None])
    assert [trial.outcome for trial in merged(schedules, [here, there])] == ["ok", "crashed"]
