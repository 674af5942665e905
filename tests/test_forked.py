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


def test_a_warm_program_has_imported_tessera_and_done_nothing_with_it(tmp_path: Path) -> None:
    program = """
        import sys
        print("tessera.compiler.pipeline" in sys.modules, "llvmlite.binding" in sys.modules)
        import torch
        from tessera import op, settings
        from tessera.runtime.plans import native
        print(settings.current().cache_dir)
        assert op.relu(torch.arange(-3.0, 3.0)).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]
        print("fork" in native.threading_reason())
        """
    done = forked.run(program, environment={**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}, warm=True)
    assert done.stdout == f"True True\n{tmp_path}\nFalse\n", done.stderr


def test_several_programs_run_at_once() -> None:
    (read, write), (said, tell) = os.pipe(), os.pipe()
    waiting = forked.Process("print(input(), flush=True)", ["-c"], (read, tell, 2))
    for each in (read, tell):
        os.close(each)
    assert forked.run("print(1)").stdout == "1\n"
    with os.fdopen(write, "w") as asking, os.fdopen(said) as answer:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.1)
        asking.write("now\n")
        asking.flush()
        assert answer.readline() == "now\n"
        assert waiting.wait(60) == 0
    waiting.kill()  # which has ended
