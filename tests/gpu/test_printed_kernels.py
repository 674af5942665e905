"""The printed kernels on a real GPU, against float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


PROGRAMS = {"printed.py": 30, "printed_attention.py": 54, "printed_knobs.py": 24}
"""Programs, and how many kernels each checks at least."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_kernels_compute_what_torch_does(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])}
    program = ROOT / "tests" / "unit" / "backend" / "triton" / name
    done = subprocess.run([sys.executable, str(program), "cuda"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) >= PROGRAMS[name]
    assert {name: error for name, error in errors.items() if not error <= 8} == {}
