"""`tessera quickstart` as a stranger runs it: empty caches first, then once more."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

KERNELS = ("matmul", "matmul+bias+gelu", "softmax", "layer norm")


def run(folder: Path) -> str:
    environment = os.environ | {"TESSERA_CACHE_DIR": str(folder / "cache"), "COLUMNS": "160"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    environment["CXX"] = "no-such-compiler"  # Inductor takes half a minute to compile the model
    command = [sys.executable, "-m", "tessera", "quickstart", "--budget", "2"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def first_and_second(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    folder = tmp_path_factory.mktemp("quickstart")
    return run(folder), run(folder), folder


def test_every_kernel_is_right_and_compared(first_and_second: tuple[str, str, Path]) -> None:
    rows = [line for line in first_and_second[0].splitlines() if "GFLOP/s │" in line or "GB/s │" in line]
    shown = {line.split("│")[0].strip(" ┃│") or line.split("│")[1].strip() for line in rows}
    assert shown == {f"{kernel} {dtype}" for kernel in KERNELS for dtype in ("fp32", "bf16")}
    assert all(line.rstrip(" │").endswith("yes") for line in rows)


def test_it_names_the_machines_ceilings_and_runs_the_example(first_and_second: tuple[str, str, Path]) -> None:
    assert "ceilings, measured" in first_and_second[0]
    assert "all 1797 predictions equal to torch's" in first_and_second[0]


def test_a_pytorch_model_runs_beside_eager_and_what_inductor_lacks_is_said(
    first_and_second: tuple[str, str, Path],
) -> None:
    lines = first_and_second[0].splitlines()
    assert [sum(line.startswith(f"│ {name} ") for line in lines) for name in ("eager", "Tessera", "Inductor")] == [
        1
    ] * 3
    assert "Inductor: not measured: no C++ compiler, which Inductor needs" in first_and_second[0]


def test_the_second_run_uses_the_cache_and_says_so(first_and_second: tuple[str, str, Path]) -> None:
    assert "tuned 8 kernels" in first_and_second[0]
    assert "all 8 schedules came from the cache" in first_and_second[1]


def test_the_files_it_names_hold_the_kernels(first_and_second: tuple[str, str, Path]) -> None:
    output, _, folder = first_and_second
    for name in ("trace.json", "summary.csv", "roofline.png"):
        assert name in output
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {"matmul", "softmax", "layer_norm"} <= {event["name"] for event in events if event["ph"] == "X"}
    with (folder / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) >= len(KERNELS)
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG")
