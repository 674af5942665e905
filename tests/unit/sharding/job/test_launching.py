"""`tessera run` with real processes: output, exit codes, restarts, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.sharding.job.ranks import JobLaunch, environment, shares
from tests import forked

ROOT = Path(__file__).resolve().parents[4]
SECONDS = 300.0
FAILS_ONCE = """
import os, signal, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, *sys.argv[1:], os.environ["WORLD_SIZE"], os.environ["TESSERA_THREADS"])
if attempt == 0 and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == 0:
    signal.pause()
"""
SLEEPS = "import os, time; print(os.getpid()); time.sleep(300)"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tessera", "run", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return forked.run("from tessera.cli.main import main; main()", ["run", *arguments], variables, SECONDS)


def is_there(pid: int) -> bool:
    """Whether a process runs still; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_example_names_the_killed_rank_on_every_other_one() -> None:
    before = set(Path("/dev/shm").iterdir())

    done = run("--ranks", "4", "--threads", "1", str(ROOT / "examples" / "kill_one.py"))

    assert done.returncode == 137, done.stderr
    for rank in (0, 1, 3):
        (line,) = [each for each in done.stdout.splitlines() if each.startswith(f"[{rank}] E_RANK_LOST")]
        assert "rank 2 (pid " in line
        assert ") was killed by SIGKILL; its last collective was number 99, all_reduce sum of 1024 float32" in line
    assert "; then ranks 0, 1, 3 ended" in done.stderr
    assert {each for each in set(Path("/dev/shm").iterdir()) - before if "tessera" in each.name} == set()


def test_all_ranks_start_again_after_a_failure_and_a_script_keeps_its_options(tmp_path: Path) -> None:
    script = tmp_path / "fails_once.py"
    script.write_text(FAILS_ONCE)

    done = run("--ranks", "2", "--restarts", "3", "--threads", "3", str(script), "--steps", "7", "-o", "x.py")

    assert done.returncode == 0, done.stderr
    lines = [f"[{rank}] attempt {attempt} --steps 7 -o x.py 2 3" for rank in range(2) for attempt in range(2)]
    assert sorted(done.stdout.splitlines()) == sorted(lines)
    assert "rank 1 (pid " in done.stderr
    assert "starting all 2 ranks again, restart 1 of 3" in done.stderr


def test_the_exit_code_is_the_failed_ranks_and_its_last_words_are_told(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys\nif os.environ['RANK'] == '1':\n    print('no data', file=sys.stderr)\n    sys.exit(3)\n"
    )

    done = run("--ranks", "2", str(script))

    assert done.returncode == 3
    assert "[1] no data\n" in done.stderr
    assert "ended with exit code 3 within" in done.stderr
    assert ": no data" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    launcher = subprocess.Popen(command("--ranks", "2", str(script)), stdout=subprocess.PIPE, text=True, env=variables)
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
    assert all(is_there(pid) for pid in pids)

    launcher.send_signal(number)
    launcher.communicate(timeout=SECONDS)

    assert launcher.returncode == (143 if number == signal.SIGTERM else -9)
    deadline = time.monotonic() + SECONDS
    while any(is_there(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_there(pid) for pid in pids)


def test_a_script_that_is_not_there_is_refused() -> None:
    done = run("--ranks", "2", "nowhere.py")

    assert done.returncode == 1
    assert done.stderr.startswith("E_ARGUMENT: nowhere.py is no file")


@pytest.mark.parametrize(
    ("cores", "ranks", "wanted"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 2, 5], 2, [[0], [2, 5]]),
        ([4, 6], 3, [[4, 6]] * 3),
    ],
)
def test_cores_are_shared_out(cores: list[int], ranks: int, wanted: list[list[int]]) -> None:
    assert shares(cores, ranks) == wanted


def test_ranks_get_the_variables_of_torchrun_and_the_users_own() -> None:
    given = {"HOME": "/home", "GLOO_SOCKET_IFNAME": "eth1", "OMP_NUM_THREADS": "5"}

    variables = environment(JobLaunch(("train.py",), 4, restarts=2), 3, 8, 1234, 1, "mailbox", given)

    wanted = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "MASTER_PORT": "1234", "TESSERA_THREADS": "8"}
    assert wanted.items() <= variables.items()
    assert {**given, "TORCHELASTIC_RESTART_COUNT": "1", "TESSERA_LAUNCHER": "mailbox"}.items() <= variables.items()
