"""What the printed kernels compute, by Triton's own interpreter, which needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("name", "least"), [("printed.py", 20), ("printed_attention.py", 14), ("printed_knobs.py", 24)]
)
def test_printed_kernels_compute_what_torch_does(name: str, least: int) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip(f"Triton 3.6's interpreter breaks with numpy {numpy.__version__}: it needs one below 2.4")
    paths = [str(ROOT), str(ROOT / "src"), *sys.path]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    program = Path(__file__).with_name(name)
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) >= least
    assert {name: error for name, error in errors.items() if not error <= 8} == {}
