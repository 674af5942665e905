"""`tessera quickstart` as a stranger runs it with empty caches, and what it tunes in another process afterwards."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.docs.snippets import ROOT
from tests.whole import examples

KERNELS = ("matmul", "matmul+bias+gelu", "softmax", "layer norm")


SMALLER = f"""
import tessera.cli.quickstart.kernels as extents
import tessera.cli.quickstart.timing as timing
extents.SIDE, extents.ROWS, extents.COLUMNS = {examples(192, 1024)}, {examples(320, 4096)}, {examples(640, 4096)}
timing.COMPARISON_S = {examples(1, 10)} / 10
"""
"""Operands that a test can pay for, and short comparisons of them; what everybody has, where everything is run."""


TUNED_AGAIN = f"""{SMALLER}
from rich.console import Console
from tessera.cli.quickstart.running import tune
from tessera.cli.quickstart.kernels import kernels

tune(kernels(), 0.2, Console(width=160))
"""
"""The part of a second run that knows of the first one."""


def environment_of(folder: Path) -> dict[str, str]:
    environment = os.environ | {"TESSERA_CACHE_DIR": str(folder / "cache"), "COLUMNS": "160"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    environment["CXX"] = "no-such-compiler"  # Inductor takes half a minute to compile the model
    return environment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it runs."""
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What it prints."""
    program = f"{SMALLER}\nfrom tessera.cli.main import main\nmain()"
    command = [sys.executable, "-c", program, "quickstart", "--budget", "0.2"]
    done = subprocess.run(
        command, cwd=folder, env=environment_of(folder), capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_kernel_is_right_and_compared(printed: str) -> None:
    rows = [line for line in printed.splitlines() if "GFLOP/s │" in line or "GB/s │" in line]
    shown = {line.split("│")[0].strip(" ┃│") or line.split("│")[1].strip() for line in rows}
    assert shown == {f"{kernel} {dtype}" for kernel in KERNELS for dtype in ("fp32", "bf16")}
    assert all(line.rstrip(" │").endswith("yes") for line in rows)


def test_it_names_the_machines_ceilings_and_runs_the_example(printed: str) -> None:
    assert "ceilings, measured" in printed
    assert "all 1797 predictions equal to torch's" in printed


def test_a_pytorch_model_runs_beside_eager_and_what_inductor_lacks_is_said(printed: str) -> None:
    lines = printed.splitlines()
    assert [sum(line.startswith(f"│ {name} ") for line in lines) for name in ("eager", "Tessera", "Inductor")] == [
        1
    ] * 3
    assert "Inductor: not measured: no C++ compiler, which Inductor needs" in printed


def test_the_second_run_uses_the_cache_and_says_so(printed: str, folder: Path) -> None:
    assert "tuned 8 kernels" in printed
    again = forked.run(TUNED_AGAIN, environment=environment_of(folder), timeout=600)
    assert "all 8 schedules came from the cache" in again.stdout, again.stderr


def test_the_files_it_names_hold_the_kernels(printed: str, folder: Path) -> None:
    for name in ("trace.json", "summary.csv", "roofline.png"):
        assert name in printed
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {"matmul", "softmax", "layer_norm"} <= {event["name"] for event in events if event["ph"] == "X"}
    with (folder / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) >= len(KERNELS)
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG")
