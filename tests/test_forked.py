"""Programs in forks (`tests/forked.py`) are as new processes are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import forked


def test_a_program_has_arguments_an_environment_a_folder_and_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = forked.run(
        """
        import atexit, os, sys
        atexit.register(print, "at exit")
        print(__name__, sys.argv, os.environ["GIVEN"], "HOME" in os.environ, os.getcwd(), sys.stdin.read() == "")
        print("tessera" in sys.modules, "torch" in sys.modules)
        raise ValueError("wrong")
        """,
        ["--all"],
        {"GIVEN": "this"},
    )
    assert done.stdout == f"__main__ ['-c', '--all'] this False {tmp_path} True\nFalse True\nat exit\n"
    assert done.stderr.endswith("ValueError: wrong\n")
    assert done.returncode == 1


def test_programs_know_nothing_of_each_other() -> None:
    assert forked.run("import tessera.errors, sys; sys.exit(3)").returncode == 3
    assert forked.run("import os; os.kill(os.getpid(), 9)").returncode == -9
    assert forked.run("import sys; print('tessera.errors' in sys.modules)").stdout == "False\n"


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        forked.run("import os, time; print(os.getpid(), flush=True); time.sleep(600)", timeout=1.0)
    assert isinstance(caught.value.output, str)
    with pytest.raises(ProcessLookupError):
        os.kill(int(caught.value.output), 0)
