"""A user's program is clean under type checkers, and runs. mypy sees it in `make check`; here is pyright."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import typed_program

ROOT = Path(__file__).parents[2]


def test_the_program_runs() -> None:
    made = typed_program.right()
    assert made.shape == (4, 2)
    assert str(made.dtype) == "fp64"


@pytest.mark.skipif(shutil.which("pyright") is None, reason="no pyright is installed: it needs node")
def test_the_program_and_the_examples_are_clean_under_pyright() -> None:
    files = [ROOT / "tests" / "e2e" / "typed_program.py", *sorted((ROOT / "examples").glob("*.py"))]
    done = subprocess.run(
        ["pyright", "--pythonpath", sys.executable, *map(str, files)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
